"""What systemd and cron are told, and what they make of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treesnap.core.model.errors import InvalidArgument
from treesnap.schedule import Job, parse_when
from treesnap.schedule.job import check, cron_line, own_mark, unit_texts

ODD = ["/plain", "/a b", "/it's", '/"', "/100%", "/%h", "/$HOME", "/${x}", "/;", "/é", "/a&b|c>d"]
ONLY_SYSTEMD = ["/back\\slash", "/new\nline", "/tab\t", "/end\\", "/\x1b[1m"]
PROGRAM = ("/usr/bin/snap",)
RECORDER = "import json, sys; print(json.dumps(sys.argv[1:]))"


def job(root: str = "/srv/data", **fields) -> Job:
    usual = {"store": "/srv/store", "when": parse_when("daily"), "program": PROGRAM}
    return Job(root=root, **(usual | fields))


def told(text: str, setting: str) -> list[list[str]]:
    """The words of the settings of a unit, as systemd.service(5) says they are read."""
    found = []
    for line in text.split("\n"):
        if not line.startswith(f"{setting}="):
            continue
        words, word, rest, is_quoted = [], None, line.partition("=")[2].removeprefix("-"), False
        while rest:
            if rest[0] == '"':
                is_quoted = not is_quoted
                word, rest = word or "", rest[1:]
            elif rest[0] == " " and not is_quoted:
                words, word, rest = [*words, word], None, rest[1:]
            elif rest[0] == "\\" and rest[1] == "x":
                word, rest = (word or "") + chr(int(rest[2:4], 16)), rest[4:]
            elif rest[:2] in ("\\\\", '\\"', "%%", "$$"):
                word, rest = (word or "") + rest[1], rest[2:]
            else:
                assert rest[0] not in "%\\"
                assert rest[0] != "$" or not words
                word, rest = (word or "") + rest[0], rest[1:]
        found.append([*words, word])
    return found


@pytest.mark.parametrize("root", [*ODD, *ONLY_SYSTEMD])
def test_systemd_reads_each_word_back(root):
    odd = job(root, on_failure=f"echo {root}", health_url="https://x.example/a?b=%20&c=$d")
    odd = odd._replace(fetcher=("/usr/bin/curl",))

    service, failed, timer = unit_texts(odd).values()

    assert told(service, "ExecStart") == [list(odd.command)]
    assert told(service, "ExecStartPost") == [["/usr/bin/curl", odd.health_url]]
    assert told(failed, "ExecStart") == [["/bin/sh", "-c", f"echo {root}"]]
    assert all(line.isprintable() for text in (service, failed, timer) for line in text.split("\n"))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_systemd_reads_any_path_back(path):
    (service, _timer) = unit_texts(job(f"/{path}")).values()

    lines = [line for line in service.split("\n") if line.startswith("ExecStart=")]
    assert told(lines[0], "ExecStart") == [list(job(f"/{path}").command)]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
@pytest.mark.parametrize("root", ["/srv/data", '/it\'s 100% $HOME "x" \\ é\n;'])
@pytest.mark.parametrize("whose", ["--system", "--user"])
def test_systemd_accepts_the_units(tmp_path, root, whose):
    whole = job(
        root,
        when=parse_when("0 12 13 * fri"),
        program=("/bin/true",),
        before="date +%Y > $HOME/'a \"b\"'",
        after='test "$SNAP_RESULT" = success',
        on_failure="echo 100%",
        health_url="https://x.example/",
        fetcher=("/bin/true",),
    )
    for name, text in unit_texts(whole).items():
        (tmp_path / name).write_text(text)

    result = subprocess.run(
        ["systemd-analyze", whose, "--man=no", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        check=False,
        env={
            "PATH": "/usr/bin:/bin",
            "SYSTEMD_LOG_LEVEL": "warning",
            "XDG_RUNTIME_DIR": str(tmp_path),
        },
    )

    assert str(tmp_path) not in result.stderr
    assert result.returncode == 0, result.stderr


def as_cron(text: str) -> str:
    """What cron gives to the shell: the command up to a bare percent sign."""
    line = text.split(" ", 5)[5]
    assert "\n" not in line
    assert "%" not in line.replace("\\%", "")
    return line.replace("\\%", "%")


@pytest.mark.parametrize("root", ODD)
@pytest.mark.parametrize("code", [0, 4])
def test_cron_runs_each_word_as_it_is(tmp_path, root, code):
    log = tmp_path / "log"
    recorder = f"{RECORDER.replace('print(', f'open({str(log)!r}, chr(97)).write(')}; "
    program = (sys.executable, "-c", f"{recorder}sys.exit({code})")
    url = "https://x.example/a?b=%20&c=$d"
    told_job = job(root, program=program, fetcher=(sys.executable, "-c", recorder), health_url=url)
    told_job = told_job._replace(on_failure="echo failed 100%")

    result = subprocess.run(
        ["/bin/sh", "-c", as_cron(cron_line(told_job))],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
    )

    words = list(told_job.command[3:])
    expected = [words, [url]] if code == 0 else [words]
    assert log.read_text() == "".join(map(json.dumps, expected))
    assert (result.stdout, result.stderr) == ("failed 100%\n" if code else "", "")


HOOKS = [
    'echo "it\'s"',
    'echo "a b" $HOME',
    "echo 100%",
    "date +%Y-%m",
    "echo `id` ${x}; :",
    "echo a & wait; echo b | cat >&1 #",
]


@pytest.mark.parametrize("hook", [*HOOKS, "printf 'a\\nb'", "echo a\necho b"])
def test_systemd_reads_each_hook_back(hook):
    hooked = job(before=hook, after=f"{hook} after", on_failure=hook)

    service, failed, _timer = unit_texts(hooked).values()

    (words,) = told(service, "ExecStart")
    assert words[:2] == ["/bin/sh", "-c"]
    assert words[3:] == ["treesnap", "/srv/data", "/srv/store", hook, f"{hook} after", *PROGRAM]
    assert told(failed, "ExecStart") == [["/bin/sh", "-c", hook]]


@pytest.mark.parametrize("hook", ["echo a\necho b", "printf 'a\\nb'"])
@pytest.mark.parametrize("name", ["before", "after", "on_failure"])
def test_a_hook_that_cron_cannot_be_told_is_refused(name, hook):
    with pytest.raises(InvalidArgument, match="Cron cannot be told"):
        cron_line(job(**{name: hook}))


@pytest.mark.parametrize("name", ["before", "after", "on_failure"])
def test_an_empty_command_is_refused(name):
    with pytest.raises(InvalidArgument, match=f"{name.replace('_', '-')} is empty"):
        check(job(**{name: " "}))


class TestHooks:
    """What the line of a crontab does; a timer of systemd runs the same program."""

    SHOW = 'echo "$SNAP_RESULT:$SNAP_SNAPSHOT:$SNAP_ROOT:$SNAP_STORE" >> log'

    def run(self, tmp_path: Path, code: int = 0, **fields) -> tuple[int, str, str]:
        """The exit code, what was logged, and what cron would mail."""
        program = ("/bin/sh", "-c", f"echo create >> log; echo 1234; exit {code}")
        line = as_cron(cron_line(job(str(tmp_path), program=program, **fields)))
        result = subprocess.run(
            ["/bin/sh", "-c", line],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
        )
        return result.returncode, (tmp_path / "log").read_text(), result.stdout + result.stderr

    @pytest.mark.parametrize(
        ("code", "result"), [(0, "success"), (4, "incomplete"), (1, "failed"), (130, "failed")]
    )
    def test_run_before_and_after(self, tmp_path, code, result):
        ended = self.run(tmp_path, code, before="echo before | tee log", after=self.SHOW)

        assert ended == (code, f"before\ncreate\n{result}:1234:{tmp_path}:/srv/store\n", "")

    def test_that_fail_before_leave_no_snapshot(self, tmp_path):
        code, log, mail = self.run(
            tmp_path,
            before="echo why >&2; exit 7",
            after=self.SHOW,
            on_failure=f"echo oh >> {tmp_path}/log",
        )

        assert log == f"skipped::{tmp_path}:/srv/store\noh\n"
        assert mail == "why\n--before failed, no snapshot\n"
        assert code == 0  # that of the command for failures

    def test_that_fail_after_are_a_failure(self, tmp_path):
        code, log, mail = self.run(
            tmp_path, after="false", health_url="https://x.example", fetcher=("echo", "pinged")
        )

        assert (code, log, mail) == (1, "create\n", "--after failed\n")

    def test_are_not_run_elsewhere_when_the_root_is_gone(self, tmp_path):
        log = tmp_path / "log"

        line = as_cron(cron_line(job(f"{tmp_path}/gone", before=f"echo before > {log}")))
        result = subprocess.run(["/bin/sh", "-c", line], capture_output=True, check=False)

        assert result.returncode > 0
        assert not log.exists()

    def test_after_keeps_the_code_of_the_snapshot(self, tmp_path):
        assert self.run(tmp_path, 4, after="false")[0] == 4

    @pytest.mark.parametrize("hook", HOOKS)
    def test_are_run_as_they_are(self, tmp_path, hook):
        direct = subprocess.run(
            ["/bin/sh", "-c", hook],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
        )

        self.run(tmp_path, before=f"exec > out; {hook}")

        assert (tmp_path / "out").read_text() == direct.stdout

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
    def test_after_runs_when_the_job_is_stopped(self, tmp_path, number):
        ready = tmp_path / "ready"
        os.mkfifo(ready)
        hooked = job(
            str(tmp_path), program=("/bin/sh", "-c", "echo > ready; exec sleep 60"), after=self.SHOW
        )

        with subprocess.Popen(
            hooked.command, stderr=subprocess.PIPE, start_new_session=True
        ) as process:
            ready.read_text()  # until the snapshot has begun
            os.killpg(process.pid, number)  # as systemd stops a service

        assert process.returncode not in (0, -9)
        assert (tmp_path / "log").read_text() == f"failed::{tmp_path}:/srv/store\n"


def test_a_crontab_that_needs_nothing_else_is_one_command():
    words = "/usr/bin/snap -C /srv/data --store /srv/store create -q --automatic -m scheduled"

    assert as_cron(cron_line(job())) == f"{words} >/dev/null"


@pytest.mark.parametrize("root", [*ONLY_SYSTEMD, "/" + "x" * 1000])
def test_what_cron_cannot_be_told_is_refused(root):
    with pytest.raises(InvalidArgument, match=r"Cron cannot be told|of cron"):
        cron_line(job(root))


@pytest.mark.parametrize(
    "fields", [{"root": "/\udcff"}, {"health_url": "ftp://x"}, {"health_url": "https://a b"}]
)
def test_what_no_timer_can_be_told_is_refused(fields):
    with pytest.raises(InvalidArgument):
        check(job(**fields))


def test_a_change_by_another_hand_is_recognised():
    texts = unit_texts(job()).values()

    assert [own_mark(text).root for text in texts] == ["/srv/data"] * 2
    assert [own_mark(text + "#\n") for text in texts] == [None] * 2
    assert own_mark(Path(__file__).read_text()) is None


def test_a_mark_says_what_else_is_run():
    extras = {"before": "a 'b' %", "after": "c", "on_failure": "d", "health_url": "https://x"}

    for text in unit_texts(job(**extras)).values():
        mark = own_mark(text)
        assert {name: getattr(mark, name) for name in extras} == extras
    for text in unit_texts(job()).values():
        assert own_mark(text).before is None
        assert "before" not in text


def test_a_schedule_is_of_a_root_in_a_store():
    assert job().id == job(when=parse_when("hourly"), on_failure="x").id
    assert len({job().id, job("/other").id, job(store="/other").id}) == 3
