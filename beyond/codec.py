"""The one place that knows how packs are compressed: zstandard frames with a declared size.

A frame may use the plain bytes of another pack as a raw-content dictionary (`prefix`). Everything that is needed
to decompress a journal is in the journal.
"""

from __future__ import annotations

import zstandard

NAME = "zstd"
#: Level for what is written while recording, and for what `gc` packs again (measured in DECISIONS.md).
LIVE_LEVEL = 4
PACKED_LEVEL = 12
#: No pack of ours is larger; a frame that declares more is refused before memory is set aside for it.
MAX_PACK = 512 * 1024 * 1024


class CodecError(ValueError):
    """A frame that can't be decompressed to the size that it should have."""


def compress(data: bytes, level: int = LIVE_LEVEL, prefix: bytes | None = None, *, window_log: int = 0) -> bytes:
    """`data` as one frame. `prefix` is a raw-content dictionary that `decompress` needs again."""
    dictionary = None
    if prefix is not None:
        dictionary = zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    if window_log:
        parameters = zstandard.ZstdCompressionParameters.from_level(
            level, window_log=window_log, enable_ldm=True, write_content_size=True, write_checksum=False
        )
        compressor = zstandard.ZstdCompressor(dict_data=dictionary, compression_params=parameters)
    else:
        compressor = zstandard.ZstdCompressor(level=level, dict_data=dictionary, write_content_size=True)
    return compressor.compress(data)


def decompress(data: bytes, size: int, prefix: bytes | None = None, codec: str = NAME) -> bytes:
    """The plain bytes of a frame; `size` is what they must come to. Raises `CodecError`."""
    if codec == "raw":
        plain = data
    elif codec == NAME:
        if not 0 <= size <= MAX_PACK:
            raise CodecError(f"a pack of {size} bytes is not believable")
        dictionary = None
        if prefix is not None:
            dictionary = zstandard.ZstdCompressionDict(prefix, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        try:
            declared = zstandard.frame_content_size(data)
            if declared != size:
                raise CodecError(f"a pack of {size} bytes declares {declared}")
            plain = zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=1 << 27).decompress(
                data, max_output_size=size or 1
            )
        except zstandard.ZstdError as error:
            raise CodecError(str(error)) from None
    else:
        raise CodecError(f"unknown codec {codec!r}")
    if len(plain) != size:
        raise CodecError(f"a pack of {size} bytes came out as {len(plain)}")
    return plain
