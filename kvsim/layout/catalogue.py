"""The catalogue of models, and the reader of its entry form from files.

An entry states facts of a model: its layers by kind, their heads and widths, its context, where
the facts come from. It holds no byte figures; those are computed. In an entry an absent key does
not apply, and ``null`` where a size belongs means that the size is not known.
"""

from __future__ import annotations

import functools
import json
import tomllib
from pathlib import Path
from typing import Any

from kvsim.errors import LayoutError
from kvsim.layout.kinds import (
    COUNTED,
    SHARED,
    TOKENS_LIMIT,
    WINDOWED,
    LayerGroup,
    integer,
    nearest,
)
from kvsim.layout.layout import KVLayout

CATALOGUE = Path(__file__).with_name("catalogue.json")

_ENTRY_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "hf_id": (str, type(None)),
    "family": (str, type(None)),
    "context": (int, type(None)),
    "dtype": (str, type(None)),
    "num_layers": (int, type(None)),
    "layers": (list,),
    "rope": (dict, type(None)),
    "kv_sharing": (dict, type(None)),
    "mtp": (str, type(None)),
    "source": (list,),
    "verified": (bool,),
    "verification": (str, type(None)),
    "inferred": (list,),
    "notes": (str,),
    # Computed figures are accepted so that a file may carry them, and are never read.
    "kv_fp16": (dict, type(None)),
}
_TYPE_NAMES = {str: "a string", int: "an integer", list: "a list", dict: "a table", bool: "a bool"}

_LAYER_SIZES = ("count", "kv_heads", "k_head_dim", "v_head_dim")
_LAYER_KEYS = (
    *_LAYER_SIZES,
    "kind",
    "pattern",
    "indices",
    "window",
    "q_heads",
    "kv_lora_rank",
    "rope_dim",
    "indexer",
    "kv_shared_k_eq_v",
    "compress_ratio",
)
# What changes the rows of the counted kinds in a way that is not counted. Ignoring one of these
# would give a wrong figure without a word.
_ROW_CHANGES = ("kv_lora_rank", "kv_shared_k_eq_v", "compress_ratio")


def catalogue_names() -> tuple[str, ...]:
    """Return the names of the catalogue, in its order."""
    return tuple(entry["name"] for entry in _catalogue())


def load_layout(name_or_path: str) -> KVLayout:
    """Return the layout of a catalogue name or of a file.

    Parameters
    ----------
    name_or_path : str
        A name of the catalogue; otherwise the path of a JSON or TOML file that holds one entry
        in the catalogue's form.

    Returns
    -------
    KVLayout

    Raises
    ------
    LayoutError
        For an unknown name, a file that cannot be read or understood, a layer kind that is not
        counted, or facts that are not known. The text is one line.
    """
    return _layout(*_find(name_or_path))


def describe(name_or_path: str, tokens: int, element_bytes: int = 2) -> dict[str, Any]:
    """Return the byte figures of one layout at a number of tokens, ready for JSON.

    Parameters
    ----------
    name_or_path : str
        As in :func:`load_layout`.
    tokens : int
        Tokens in the cache, non-negative.
    element_bytes : int
        Bytes per cached element.

    Returns
    -------
    dict
        Keys name, tokens, dense_bytes, bounded_bytes, marginal_bytes_per_token,
        bytes_per_token_below_window, verified, context, by_kind, sources, notes, inferred. Below
        every window dense_bytes = bytes_per_token_below_window * tokens.
    """
    entry, where = _find(name_or_path)
    layout = _layout(entry, where)
    tokens = integer(tokens, "tokens", lowest=0, limit=TOKENS_LIMIT)
    return {
        "name": layout.name,
        "tokens": tokens,
        "dense_bytes": layout.dense_bytes(tokens, element_bytes),
        "bounded_bytes": layout.bounded_bytes(element_bytes),
        "marginal_bytes_per_token": layout.marginal_bytes_per_token(element_bytes),
        "bytes_per_token_below_window": layout.bytes_per_token_below_window(element_bytes),
        "verified": layout.verified,
        "context": layout.context,
        "by_kind": layout.by_kind(tokens, element_bytes),
        "sources": list(layout.sources),
        "notes": entry.get("notes", ""),
        "inferred": list(entry.get("inferred", [])),
    }


def describe_all() -> list[dict[str, Any]]:
    """Return one summary per catalogue entry, at 2 bytes per element, ready for JSON.

    Returns
    -------
    list of dict
        Keys name, family, num_layers, kinds, context, verified, supported, reason and the three
        byte figures that do not depend on a number of tokens. Where `supported` is false,
        `reason` says why and the figures are None.
    """
    rows = []
    for entry in _catalogue():
        layout, reason = None, None
        try:
            layout = _layout(entry, f"layout {entry['name']!r}")
        except LayoutError as error:
            reason = str(error)
        rows.append(
            {
                "name": entry["name"],
                "family": entry["family"],
                "num_layers": entry["num_layers"],
                "kinds": list(dict.fromkeys(layer["kind"] for layer in entry["layers"])),
                "context": entry["context"],
                "verified": entry["verified"],
                "supported": layout is not None,
                "reason": reason,
                "bytes_per_token_below_window": layout and layout.bytes_per_token_below_window(),
                "marginal_bytes_per_token": layout and layout.marginal_bytes_per_token(),
                "bounded_bytes": layout and layout.bounded_bytes(),
            }
        )
    return rows


@functools.lru_cache(maxsize=1)
def _catalogue() -> list[dict[str, Any]]:
    return json.loads(CATALOGUE.read_text(encoding="utf-8"))


def _find(name_or_path: str) -> tuple[dict[str, Any], str]:
    """Return an entry and the words that name it in a refusal."""
    name_or_path = str(name_or_path)
    entries = {entry["name"]: entry for entry in _catalogue()}
    if name_or_path in entries:
        return entries[name_or_path], f"layout {name_or_path!r}"
    try:
        path = Path(name_or_path)
        is_path = path.suffix.lower() in (".json", ".toml") or path.is_file()
    except (OSError, ValueError):
        is_path = False
    if not is_path:
        raise LayoutError(
            f"unknown layout {name_or_path!r:.200}; the nearest is"
            f" {nearest(name_or_path, entries)!r} (or give the path of a .json or .toml file)"
        )
    return _read_file(path), str(path)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise LayoutError(f"{path}: is not UTF-8 text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise LayoutError(f"{str(path)!r}: cannot be read: {reason}") from None
    try:
        if path.suffix.lower() == ".toml":
            entry = tomllib.loads(text)
        elif path.suffix.lower() == ".json":
            entry = json.loads(text, object_pairs_hook=_no_repeats)
        else:
            raise LayoutError(f"{path}: a layout file must end in .json or .toml")
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0]
        raise LayoutError(f"{path}: cannot be parsed: {reason}") from None
    if not isinstance(entry, dict):
        raise LayoutError(f"{path}: must hold one layout entry, not a {type(entry).__name__}")
    return entry


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build a JSON object, refusing a repeated key: the last one would win without a word."""
    table = dict(pairs)
    if len(table) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {repeated!r} is given twice")
    return table


def _layout(entry: dict[str, Any], where: str) -> KVLayout:
    """Build the layout of one entry; every refusal begins with `where`."""
    _check_entry(entry, where)
    _check_kinds(entry["layers"], where)
    _check_known(entry["layers"], where)
    groups = []
    for number, layer in enumerate(entry["layers"]):
        try:
            groups.append(_group(layer))
        except LayoutError as error:
            raise LayoutError(f"{where}: layers[{number}].{error}") from None
    _check_totals(entry, groups, where)
    try:
        return KVLayout(
            name=entry["name"],
            groups=tuple(groups),
            context=entry.get("context"),
            verified=entry.get("verified", False),
            dtype=entry.get("dtype"),
            sources=tuple(entry.get("source", ())),
            rope=entry.get("rope"),
        )
    except LayoutError as error:
        text = str(error)
        raise LayoutError(text if text.startswith(where) else f"{where}: {text}") from None


def _check_entry(entry: dict[str, Any], where: str) -> None:
    """Refuse unknown or missing keys and wrong types of an entry and its list of layers."""
    for key, value in entry.items():
        _check_key(key, _ENTRY_TYPES, where)
        types = _ENTRY_TYPES[key]
        # A bool is an int to isinstance, and `verified = 1` or `context = true` is a mistake.
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise LayoutError(f"{where}: {key} must be {_TYPE_NAMES[types[0]]}, not {value!r:.60}")
    for key in ("name", "layers"):
        if key not in entry:
            raise LayoutError(f"{where}: key {key!r} is missing")
        if not entry[key]:
            raise LayoutError(f"{where}: {key} is empty")
    for key in ("source", "inferred"):
        if not all(isinstance(line, str) for line in entry.get(key, ())):
            raise LayoutError(f"{where}: {key} must be a list of strings")
    for number, layer in enumerate(entry["layers"]):
        place = f"{where}: layers[{number}]"
        if not isinstance(layer, dict):
            raise LayoutError(f"{place} must be a table, not {layer!r:.60}")
        for key in layer:
            _check_key(key, _LAYER_KEYS, place)
        if not isinstance(layer.get("kind"), str):
            raise LayoutError(f"{place}.kind must be one of {', '.join(COUNTED)}")


def _check_key(key: str, valid: Any, where: str) -> None:
    # A misspelt optional key (an indexer, say) would otherwise be left out of the count.
    if key not in valid:
        raise LayoutError(
            f"{where}: unknown key {key!r:.60}; the nearest is {nearest(key, valid)!r}"
        )


def _check_kinds(layers: list[dict[str, Any]], where: str) -> None:
    """Refuse a layout as a whole if one of its kinds is not counted: half a sum is no figure."""
    kinds = dict.fromkeys(layer["kind"] for layer in layers)
    for kind in kinds:
        if kind not in COUNTED:
            raise LayoutError(
                f"{where}: kind {kind!r:.60} is not counted yet (only {', '.join(COUNTED)})"
            )


def _check_known(layers: list[dict[str, Any]], where: str) -> None:
    """Refuse absent sizes as missing keys, and null sizes as facts that are not known."""
    unknown = []
    for number, layer in enumerate(layers):
        needed = _LAYER_SIZES + (("window",) if layer["kind"] in WINDOWED else ())
        for key in needed:
            if key not in layer:
                raise LayoutError(f"{where}: layers[{number}].{key} is missing")
            if layer[key] is None:
                unknown.append(f"layers[{number}].{key}")
    if unknown:
        raise LayoutError(f"{where}: cannot be counted, unknown facts: {', '.join(unknown)}")


def _group(layer: dict[str, Any]) -> LayerGroup:
    """Build one group; a refusal begins with the key at fault."""
    for key in _ROW_CHANGES:
        if layer.get(key) not in (None, False):
            raise LayoutError(f"{key} is not counted yet for kind {layer['kind']!r}")
    for key in ("q_heads", "rope_dim"):
        if layer.get(key) is not None:
            integer(layer[key], key, lowest=1)
    pattern = layer.get("pattern", "")
    if not isinstance(pattern, str):
        raise LayoutError(f"pattern must be a string, not {pattern!r:.60}")
    indices = layer.get("indices")
    if indices is not None and not isinstance(indices, list):
        raise LayoutError(f"indices must be a list of layer numbers, not {indices!r:.60}")
    return LayerGroup(
        count=layer["count"],
        kind=layer["kind"],
        window=layer.get("window"),
        kv_heads=layer["kv_heads"],
        k_head_dim=layer["k_head_dim"],
        v_head_dim=layer["v_head_dim"],
        index_elements=_index_elements(layer.get("indexer")),
        pattern=pattern,
        indices=None if indices is None else tuple(indices),
        q_heads=layer.get("q_heads") or 0,
    )


def _index_elements(indexer: Any) -> int:
    """Return the elements that an indexer caches per token of its layer."""
    if indexer is None:
        return 0
    if not isinstance(indexer, dict):
        raise LayoutError(f"indexer must be a table, not {indexer!r:.60}")
    if "cached_per_token" not in indexer:
        raise LayoutError("indexer.cached_per_token is missing")
    return integer(indexer["cached_per_token"], "indexer.cached_per_token", lowest=0)


def _check_totals(entry: dict[str, Any], groups: list[LayerGroup], where: str) -> None:
    """Refuse an entry whose totals contradict its layers."""
    facts = (
        (
            "num_layers",
            entry.get("num_layers"),
            sum(group.count for group in groups),
            "the layers add up to",
        ),
        (
            "kv_sharing.num_kv_shared_layers",
            (entry.get("kv_sharing") or {}).get("num_kv_shared_layers"),
            sum(group.count for group in groups if group.kind == SHARED),
            "the layers of kind 'shared' are",
        ),
    )
    for key, stated, counted, words in facts:
        if stated is None:
            continue
        stated = integer(stated, f"{where}: {key}", lowest=0)
        if stated != counted:
            raise LayoutError(f"{where}: {key} is {stated} where {words} {counted}")
