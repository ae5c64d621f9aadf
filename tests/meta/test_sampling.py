"""The inner loop's sample of the tests, and their order, by pytest itself."""

from __future__ import annotations

import pytest

MODULE = """
import pytest

@pytest.mark.parametrize("one", range({ones}))
@pytest.mark.parametrize("two", "abc")
def test_many(one, two): pass

@pytest.mark.parametrize("one", [pytest.param(0, marks=pytest.mark.filterwarnings("ignore")), 1])
class TestGroup:
    def test_in_it(self, one): pass

{marks}
def test_plain(): pass
"""


def collected(pytester: pytest.Pytester, *options: str, seed: int = 1) -> list[str]:
    """The ids of what would run, in order."""
    result = run(pytester, f"--randomly-seed={seed}", "--collect-only", "-q", *options)
    assert result.ret == pytest.ExitCode.OK
    return [line for line in result.outlines if "::" in line]


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "sampling", "-p", "pytest_randomly", "-p", "pytest_timeout", *options)


@pytest.fixture(autouse=True)
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is installed beside pytest takes half a second to load."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def module(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=MODULE.format(ones=3, marks=""))


@pytest.mark.parametrize(
    ("most", "of_many"),
    [
        (1, ["a-0"]),
        (2, ["a-0", "c-2"]),
        (3, ["a-0", "b-1", "c-2"]),
        (99, [f"{two}-{one}" for two in "abc" for one in range(3)]),
    ],
)
def test_of_every_function_the_first_parameter_set_and_others_evenly_spread_run(pytester, module, most, of_many):
    found = collected(pytester, "--sample", str(most))
    expected = [f"test_it.py::test_many[{name}]" for name in of_many]
    expected += [f"test_it.py::TestGroup::test_in_it[{number}]" for number in range(min(most, 2))]
    assert sorted(found) == sorted([*expected, "test_it.py::test_plain"])


def test_the_sample_is_the_same_in_whatever_order_the_tests_come(pytester, module):
    orders = [collected(pytester, "--sample", "2", seed=seed) for seed in (1, 2, 3)]
    assert len({tuple(order) for order in orders}) > 1
    assert len({frozenset(order) for order in orders}) == 1


def test_without_the_option_everything_runs(pytester, module):
    assert len(collected(pytester)) == 3 * 3 + 2 + 1


def test_the_sample_is_one_of_the_tests_that_a_marker_expression_leaves(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("one", [pytest.param(0, marks=pytest.mark.timeout(9)), 1, 2])
        def test_many(one): pass
        """
    )
    (found,) = collected(pytester, "--sample", "1", "-m", "not timeout")
    assert found.endswith("::test_many[1]")


@pytest.mark.parametrize("given", ["0", "-1", "some"])
def test_a_sample_of_less_than_one_is_refused(pytester, given):
    result = run(pytester, f"--sample={given}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--sample*invalid*"])


def test_the_modules_that_may_take_longest_come_first_and_stay_whole(pytester):
    for number in (100, 300, 200):
        marks = f"@pytest.mark.timeout({number})"
        pytester.makepyfile(**{f"test_{number}": MODULE.format(ones=2, marks=marks)})
    pytester.makepyfile(test_0=MODULE.format(ones=2, marks=""))
    modules = [name.partition("::")[0] for name in collected(pytester)]
    assert list(dict.fromkeys(modules)) == ["test_300.py", "test_200.py", "test_100.py", "test_0.py"]
    assert modules == sorted(modules, key=lambda name: -int(name[5:-3]))
