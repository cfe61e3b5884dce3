"""Physical memory in integers: one file per allocator model. Nothing here touches memory."""

from kvsim.paging.physical.extents import PLANE_LAYOUTS, BufferSpec, Extents, Orders, buffers_of

__all__ = ["PLANE_LAYOUTS", "BufferSpec", "Extents", "Orders", "buffers_of"]
