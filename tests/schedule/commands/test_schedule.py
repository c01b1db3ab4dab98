"""``snap schedule``, with a program in the place of systemctl."""

from __future__ import annotations

from pathlib import Path

import pytest

SYSTEMCTL = """\
#!/bin/sh
echo "$@" >> "$FAKES/systemctl.log"
case " $* " in *" $(cat "$FAKES/fails" 2>/dev/null || echo nothing) "*)
    echo "Failed to do it" >&2; exit 1;;
esac
"""
CRONTAB = """\
#!/bin/sh
echo "$@" >> "$FAKES/crontab.log"
"""


@pytest.fixture
def fakes(tmp_path, environment) -> Path:
    """A directory of programs that is the whole PATH; systemctl and crontab record calls."""
    directory = tmp_path / "fakes"
    directory.mkdir()
    for name, text in {"systemctl": SYSTEMCTL, "crontab": CRONTAB}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    for name in ("sh", "cat", "echo"):
        (directory / name).symlink_to(f"/bin/{name}")
    environment.update(PATH=str(directory), FAKES=str(directory), XDG_CONFIG_HOME="")
    return directory


@pytest.fixture
def units(environment) -> Path:
    """Where the units of the user lie."""
    return Path(environment["HOME"]) / ".config/systemd/user"


def log(fakes: Path) -> list[str]:
    lines = (fakes / "systemctl.log").read_text().splitlines()
    return [line for line in lines if "show" not in line]


def contents(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_writes_a_timer_and_starts_it(snap, root, store, fakes, units):
    result = snap("schedule", "daily", "--user", "--on-failure", "mail me")

    assert result.code == 0, result
    name = next(path.stem for path in units.glob("*.timer"))
    assert set(contents(units)) == {f"{name}.timer", f"{name}.service", f"{name}-failed.service"}
    assert result.out == f"Scheduled daily snapshots of {root}: {units}/{name}.timer\n"
    assert "OnCalendar=*-*-* 00:00:00\n" in contents(units)[f"{name}.timer"]
    assert f"OnFailure={name}-failed.service\n" in contents(units)[f"{name}.service"]
    assert f" -C {root} --store {store} create -q " in contents(units)[f"{name}.service"]
    assert log(fakes) == [
        "--user daemon-reload",
        f"--user enable {name}.timer",
        f"--user restart {name}.timer",
    ]
    assert {path.stat().st_mode & 0o777 for path in units.iterdir()} == {0o644}
    assert "enable-linger" in result.err


def test_what_is_written_takes_a_snapshot(snap, root, fakes, units, run_snap):
    (root / "file").write_text("one")
    snap("schedule", "hourly", "--user")

    (service,) = units.glob("*.service")
    (line,) = [row for row in service.read_text().splitlines() if row.startswith("ExecStart=")]
    words = line.split("=", 1)[1].split(" ")
    assert Path(words[0]).name == "snap" or words[1:3] == ["-m", "treesnap"]
    assert run_snap(*words[words.index("-C") :], cwd=Path("/")).code == 0

    (made,) = snap("list", "--json").json["snapshots"]
    assert (made["kind"], made["label"]) == ("automatic", "scheduled")


def test_a_dry_run_prints_it_all_and_does_nothing(snap, root, fakes, units):
    result = snap("schedule", "--dry-run", "0 12 13 * fri", "--user")

    assert result.code == 0, result
    assert result.out.count("Would write ") == 2
    assert "  OnCalendar=*-*-13 12:00:00\n  OnCalendar=Fri *-*-* 12:00:00\n" in result.out
    assert "Would run: systemctl --user daemon-reload\n" in result.out
    assert not units.exists()
    assert not (fakes / "systemctl.log").exists()


def test_units_of_the_system_are_where_systemd_looks(snap, root, fakes):
    result = snap("schedule", "daily", "--system", "--dry-run", "--json").json

    assert result["schedule"]["path"].startswith("/etc/systemd/system/treesnap-")
    assert result["commands"][0] == ["systemctl", "daemon-reload"]


def test_another_time_replaces_the_first(snap, root, fakes, units):
    snap("schedule", "daily", "--user", "--on-failure", "mail me")
    before = contents(units)

    assert snap("schedule", "hourly", "--user").code == 0

    after = contents(units)
    assert len(before) == 3
    assert len(after) == 2
    assert not set(before.items()) & set(after.items())
    (item,) = snap("schedule", "list", "--user", "--json").json["schedules"]
    assert (item["when"], item["root"]) == ("hourly", str(root))
    assert snap("schedule", "list", "--user").out.split()[1:3] == ["hourly", str(root)]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("step", ["daemon-reload", "enable", "restart"])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_systemd_refuses_leaves_all_as_before(snap, root, fakes, units, step, is_first):
    if not is_first:
        snap("schedule", "daily", "--user", "--on-failure", "mail me")
    before = contents(units) if units.exists() else {}
    (fakes / "fails").write_text(step)

    result = snap("schedule", "hourly", "--user")

    assert result.code == 1
    assert f"systemctl --user {step}" in result.err
    assert "failed: Failed to do it" in result.err
    assert contents(units) == before


def test_what_was_changed_by_hand_is_left_alone(snap, root, fakes, units):
    snap("schedule", "daily", "--user")
    path = next(units.glob("*.service"))
    path.write_text(path.read_text().replace("create -q", "create"))
    changed = path.read_text()

    again = snap("schedule", "hourly", "--user", "--json")
    removed = snap("schedule", "remove", "--user")

    assert (again.code, again.json["code"]) == (3, "not-ours")
    assert removed.code == 3
    assert path.read_text() == changed


def test_remove_does_without_a_service_that_systemd_has_not_loaded(snap, root, fakes, units):
    snap("schedule", "daily", "--user")
    (fakes / "fails").write_text("reset-failed")

    assert snap("schedule", "remove", "--user").code == 0
    assert contents(units) == {}


def test_a_link_in_the_way_is_left_alone(snap, root, fakes, units):
    name = snap("schedule", "daily", "--user", "--dry-run", "--json").json["written"][0]["path"]
    units.mkdir(parents=True)
    Path(name).symlink_to("/dev/null")  # as 'systemctl mask' makes it

    assert snap("schedule", "daily", "--user").code == 3
    assert Path(name).is_symlink()


def test_remove_leaves_nothing(snap, root, fakes, units):
    snap("schedule", "daily", "--user", "--on-failure", "mail me")
    (units / "other.timer").write_text("[Timer]\n")
    name = next(path.stem for path in units.glob("treesnap-*.timer"))

    would = snap("schedule", "remove", "--user", "--dry-run")
    did = snap("schedule", "remove", "--user")

    assert would.out.startswith(f"Would remove daily snapshots of {root}:\n")
    assert would.out.count("\n") == 4
    assert did.out == would.out.replace("Would remove", "Removed")
    assert contents(units) == {"other.timer": "[Timer]\n"}
    assert log(fakes)[-3:] == [
        f"--user disable --now {name}.timer",
        f"--user reset-failed {name}.service {name}-failed.service",
        "--user daemon-reload",
    ]
    missing = snap("schedule", "remove", "--user", "--json")
    assert (missing.code, missing.json["code"]) == (5, "schedule-not-found")


@pytest.mark.parametrize("is_absent", [True, False])
def test_says_where_no_systemd_answers_what_prints_a_line_for_cron(
    snap, root, fakes, units, is_absent
):
    if is_absent:
        (fakes / "systemctl").unlink()
    (fakes / "fails").write_text("show")

    result = snap("schedule", "daily", "--user")

    assert (result.code, result.out) == (1, "")
    assert "No systemd answers 'systemctl --user', so nothing was scheduled" in result.err
    assert "hint: --cron prints a line for a crontab" in result.err
    assert snap("schedule", "daily", "--user", "--json").json["code"] == "no-timers"
    assert not units.exists()


class TestCron:
    def test_is_told_by_one_line_that_a_person_pastes(self, snap, root, store, fakes, units):
        result = snap("schedule", "30 3 * * 1", "--cron")

        assert result.code == 0
        (line,) = result.out.splitlines()
        assert line.startswith("30 3 * * 1 /")
        assert line.endswith(
            f" -C {root} --store {store} create -q --automatic -m scheduled >/dev/null"
        )
        assert "paste the line into 'crontab -e'" in result.err
        assert snap("schedule", "30 3 * * 1", "--cron", "--json").json["line"] == line

    def test_gets_what_systemd_would_run(self, snap, root, fakes):
        result = snap("schedule", "--cron", "daily", "--before", "date +%Y", "--on-failure", "oh")

        assert "date +\\%Y" in result.out
        assert result.out.endswith("|| /bin/sh -c oh\n")

    def test_needs_no_systemd_and_changes_nothing(self, snap, root, fakes, units):
        (fakes / "systemctl").unlink()

        assert snap("schedule", "daily", "--cron").code == 0
        assert snap("schedule", "list", "--user", "--json").json["schedules"] == []
        assert not units.exists()
        assert not (fakes / "crontab.log").exists()

    @pytest.mark.parametrize("words", [["--user"], ["--system"], ["--after", "a\nb"]])
    def test_is_not_told_what_has_no_place_in_a_line(self, snap, root, fakes, words):
        result = snap("schedule", "daily", "--cron", *words)

        assert (result.code, result.out) == (2, "")


def test_hooks_are_shown_and_listed(snap, root, fakes):
    hooks = ["--before", "pg_dump 'a' > 100%", "--after", "echo $SNAP_RESULT"]
    words = ["daily", "--user", *hooks, "--on-failure", "oh"]
    would = snap("schedule", *words, "--dry-run", "--json").json

    assert snap("schedule", *words).code == 0

    extras = {"before": "pg_dump 'a' > 100%", "after": "echo $SNAP_RESULT", "on_failure": "oh"}
    (item,) = snap("schedule", "list", "--user", "--json").json["schedules"]
    assert item == would["schedule"]
    assert {name: item[name] for name in extras} == extras
    assert item["health_url"] is None
    assert snap("schedule", "list", "--user").out.splitlines()[1:] == [
        "  before: pg_dump 'a' > 100%",
        "  after: echo $SNAP_RESULT",
        "  on failure: oh",
    ]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["sometimes"], 2),
        (["daily", "--before", ""], 2),
        (["daily", "--health-url", "ftp://x"], 2),
        (["daily", "--health-url", "https://x.example"], 1),  # neither curl nor wget
        (["daily", "-C", "/etc"], 3),
        (["daily", "-C", "/nowhere"], 5),
    ],
)
def test_refuses_before_anything_is_written(snap, root, fakes, units, words, code):
    assert snap("schedule", *words, "--user").code == code
    assert not units.exists()


def test_a_dangerous_root_is_scheduled_with_force(snap, fakes, units):
    assert snap("-C", "/etc", "schedule", "daily", "--user", "--force").code == 0

    (service,) = units.glob("*.service")
    assert service.read_text().count("create -q --automatic -m scheduled --force\n") == 1
