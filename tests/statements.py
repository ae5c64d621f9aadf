"""Which SQL statements are run, and on whose behalf: background tasks look at the database whenever they like."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import event

from appliance.audit import ORIGIN
from appliance.storage.database import Database


def of_requests() -> bool:
    """Whether a request is being served here."""
    return bool(ORIGIN.get().request_id)


@contextmanager
def noted(database: Database, note: Callable[[str], object], when: Callable[[], bool] = of_requests) -> Iterator[None]:
    """Tell ``note`` the statements that are run meanwhile: those of requests, or ``when`` something else holds."""
    assert database._engine is not None
    engine = database._engine.sync_engine

    def tell(connection, cursor, statement, parameters, context, many) -> None:
        if when():
            note(statement)

    event.listen(engine, "before_cursor_execute", tell)
    try:
        yield
    finally:
        event.remove(engine, "before_cursor_execute", tell)
