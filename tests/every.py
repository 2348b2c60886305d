"""A law that holds for many things, as one test: collected once; a failure names the thing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def every(things: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """A test that calls its law with each of `things`; a tuple is given as several arguments."""
    things = list(things)

    def decorate(law: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            assert things
            for thing in things:
                try:
                    law(*thing) if isinstance(thing, tuple) else law(thing)
                except BaseException as error:
                    error.add_note(f"broken by {getattr(thing, 'id', repr(thing))}")
                    raise

        # Not functools.wraps: pytest would look through it and ask for the law's arguments.
        test.__name__, test.__doc__, test.__module__ = law.__name__, law.__doc__, law.__module__
        return test

    return decorate
