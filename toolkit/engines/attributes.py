"""Whether what this toolkit reaches for inside a library is still there, named if it is not."""

from collections.abc import Iterable

from toolkit.errors import UsageError


def check_attributes(library: str, read_in: str, owner: object, names: Iterable[str]) -> None:
    """Refuse an object of a library that lacks an undocumented attribute.

    Args:
        library: as pip names it.
        read_in: the version of the library whose source the names are from.
        owner: an object or a class of the library.
        names: attributes it must have, by itself or in its class's annotations.

    Raises:
        UsageError: names the class, every attribute that is gone, and both versions.
    """
    kind = owner if isinstance(owner, type) else type(owner)
    declared = {name for base in kind.__mro__ for name in getattr(base, "__annotations__", {})}
    gone = [name for name in names if name not in declared and not hasattr(owner, name)]
    if gone:
        from importlib.metadata import version

        raise UsageError(
            f"{library} {version(library)}: {kind.__name__} has no {', '.join(gone)}, which "
            f"{library} {read_in} has and this toolkit needs; pip install {library}=={read_in}"
        )
