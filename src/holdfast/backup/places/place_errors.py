"""What a failure of the file system means where it happens in a place of backups."""

from __future__ import annotations

import errno

from holdfast.errors import BackupFailed, HoldfastError, PlaceFull, PlaceMissing, PlaceRefused, RepositoryDamaged

_AWAY = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.ENODEV,
    errno.ENXIO,
    errno.ESTALE,
    errno.ENOTCONN,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ETIMEDOUT,
)


def place_error(error: OSError, place: str) -> HoldfastError:
    """The same failure, as every other of this place: it stops no other."""
    named = f"{error.filename}: " if error.filename else ""
    text = f"place {place}: {named}{error.strerror or error}"
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return PlaceFull(text)
        case errno.EACCES | errno.EPERM | errno.EROFS:
            return PlaceRefused(text)
        case errno.EIO:
            return RepositoryDamaged(text)
        case code if code in _AWAY:
            return PlaceMissing(text)
        case _:
            return BackupFailed(text)
