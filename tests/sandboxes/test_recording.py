"""A directory of a sandbox is captured before each command, and its history comes to the host."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from pathlib import Path

import pytest

import treesnap
from sandbox_machine import Machine
from treesnap.core.model.errors import InvalidArgument, NotFound, OperationFailed, Refused


def labels(snapshots) -> list[str | None]:
    return [snapshot.record.label for snapshot in reversed(snapshots)]


def commands_of_agent(machine: Machine) -> list[str]:
    return [command for command in machine.commands if "snap" not in command]


# ------------------------------------------------------------------------ history


def test_the_history_is_here_when_the_sandbox_is_gone(scene):
    with scene.recorded() as history:
        scene.run("echo roses > plants")
        scene.run("rm plants")
    there = scene.there()
    scene.machine.die()
    shutil.rmtree(scene.machine.home)

    here = scene.here()

    assert [found.id for found in here[-len(there) :]] == [found.id for found in there]
    assert history.handed_out.newest_id == there[0].id
    assert history.gaps == []
    clone = treesnap.open(scene.directory.parent / "clone", scene.directory.parent / "other")
    clone.restore("step:2", session=history.session)
    assert (scene.directory.parent / "clone" / "plants").read_text() == "roses\n"
    assert clone.verify(read_data=True).problems == ()


def test_each_command_is_a_step_of_the_session(scene):
    with scene.recorded(session="task 1"):
        scene.run("echo roses > plants")
        scene.run("echo 'a\nb'   > other")

    there = scene.there()

    assert labels(there) == [
        "the recording begins",
        "echo roses > plants",
        "echo 'a b' > other",
        "the recording ends",
    ]
    assert {snapshot.record.session for snapshot in there} == {"task 1"}
    assert [snapshot.record.step for snapshot in reversed(there)] == [0, 1, 2, 3]
    assert {snapshot.record.kind for snapshot in there} == {"automatic"}


def test_snapshots_are_named_in_the_store_of_the_handle(scene):
    scene.run("echo roses > plants")
    with scene.recorded() as history:
        scene.run("rm plants")
    first = scene.there()[-1]

    scene.handle.restore(f"task-1/project@{first.id}", paths=["plants"])

    assert (Path(scene.handle.root) / "plants").read_text() == "roses\n"
    assert scene.handle.show(history.handed_out.ref).id == history.handed_out.newest_id


def test_only_what_is_new_is_read(scene):
    (scene.project / "large").write_bytes(bytes(range(256)) * 4000)
    with scene.recorded() as history:
        first = history.handed_out
        scene.machine.reads.clear()
        scene.run("echo roses > plants")
        second = history.handed_out
        names = [Path(path).parts[-2:] for path in scene.machine.reads]

    kinds = [kind for kind, _ in names]
    assert first.files >= 3
    assert set(kinds) <= {"packs", "commits", "handed-out"}, names
    assert kinds.count("packs") <= 2, names
    assert second.snapshots >= 1
    assert second.size_bytes < 2000


def test_a_second_recording_goes_on(scene):
    with scene.recorded():
        scene.run("echo roses > plants")
    with scene.recorded() as history:
        scene.run("echo tulips > plants")

    assert history.handed_out.newest_id == scene.there()[0].id
    assert len(scene.here()) >= len(scene.there()) == 6


def test_a_remote_of_the_sandbox_takes_the_history_instead(scene, tmp_path):
    scene.run(f"snap remote add backup {tmp_path / 'bucket'}")

    with scene.recorded(remote="backup") as history:
        scene.run("echo roses > plants")

    assert history.handed_out is None
    assert scene.machine.reads == []
    scene.directory = tmp_path / "bucket"
    scene.machine.die()
    assert set(labels(scene.here())) >= {"the recording begins", "the recording ends"}


def test_two_directories_are_recorded_at_once(scene):
    other = scene.machine.home / "other"
    other.mkdir()

    with scene.recorded():
        with scene.recorded(other):
            scene.run("echo roses > plants")
        scene.run("rm plants")
    scene.run("touch unrecorded")

    assert "echo roses > plants" in labels(scene.there())
    assert labels(scene.there(other))[1:2] == ["echo roses > plants"]
    assert "rm plants" in labels(scene.there())
    assert "rm plants" not in labels(scene.there(other))
    assert not [label for label in labels(scene.there()) if "snap" in str(label)]
    assert "touch unrecorded" not in labels(scene.there())


def test_other_ways_to_run_something_make_a_checkpoint_too(scene):
    with scene.recorded() as history:
        if scene.provider == "e2b":
            running = scene.client.commands.run("sleep 1000", background=True)
            label = "sleep 1000"
        else:
            from daytona import SessionExecuteRequest

            scene.client.process.code_run("open('project/plants', 'w').write('roses')")
            scene.client.process.create_session("shell")
            request = SessionExecuteRequest(command="echo tulips > project/plants")
            scene.client.process.execute_session_command("shell", request)
            label = request.command

    if scene.provider == "e2b":
        scene.machine.die()
        with pytest.raises(Exception, match=r"(?i)sandbox|connect|stream|killed|-9|exit"):
            running.wait()
    else:
        assert (scene.project / "plants").read_text() == "tulips\n"
        assert labels(scene.there())[1].startswith("open('project/plants'")
    assert labels(scene.there())[-2] == label
    assert history.gaps == []
    assert history.handed_out.newest_id == scene.there()[0].id


def test_arguments_may_have_names_and_wrong_ones_are_refused_as_ever(scene):
    with scene.recorded() as history:
        if scene.provider == "e2b":
            scene.client.commands.run(cmd="echo roses > project/plants")
        else:
            from daytona import SessionExecuteRequest

            scene.client.process.create_session("shell")
            request = SessionExecuteRequest(command="echo roses > project/plants")
            scene.client.process.execute_session_command(session_id="shell", req=request)
        with pytest.raises(Exception, match="unlikely"):
            scene.run("true", unlikely=1)

    assert "echo roses > project/plants" in labels(scene.there())
    assert (scene.project / "plants").read_text() == "roses\n"
    assert history.gaps == []


# ------------------------------------------------------------------- what goes wrong


def test_a_command_that_never_ends_leaves_what_it_did(scene):
    with scene.recorded() as history, pytest.raises(Exception, match=r"(?i)time"):
        scene.run("echo half > plants; sleep 1000", timeout=1)

    assert history.gaps == []
    assert history.handed_out.newest_id == scene.there()[0].id
    scene.here()
    assert (scene.directory.parent / "clone" / "plants").read_text() == "half\n"


def test_a_sandbox_that_dies_between_commands_leaves_what_was_handed_out(scene, caplog):
    def agent() -> None:
        scene.run("echo roses > plants")
        scene.run("echo tulips > plants")
        scene.machine.die()
        scene.run("echo lilies > plants")

    history = scene.recorded()
    with pytest.raises(Exception, match=r"(?i)not") as raised, history:
        agent()

    newest = scene.there()[0]
    assert not isinstance(raised.value, treesnap.TreesnapError)
    assert newest.record.label == "echo tulips > plants"
    assert history.handed_out.newest_id == newest.id
    assert "was not handed out" in caplog.text
    assert newest.id in {snapshot.id for snapshot in scene.here()}


def test_a_sandbox_that_is_killed_in_the_body_is_told(scene):
    def agent() -> None:
        with scene.recorded():
            scene.run("echo roses > plants")
            scene.machine.die()

    with pytest.raises(OperationFailed, match=r"was not handed out .*; handed out before: task-1/"):
        agent()


def test_a_sandbox_that_was_paused_goes_on(scene):
    with scene.recorded() as history:
        scene.run("echo roses > plants")
        scene.pause()
        with pytest.raises(Exception):  # noqa: B017, PT011 - the provider's
            scene.run("echo tulips > plants")
        scene.resume()
        scene.run("echo lilies > plants")

    assert [gap.command for gap in history.gaps] == ["echo tulips > plants"]
    assert history.handed_out.newest_id == scene.there()[0].id
    assert (scene.project / "plants").read_text() == "lilies\n"


def test_a_checkpoint_that_fails_stops_no_command_and_is_said_once(scene, caplog):
    with scene.recorded() as history:
        scene.machine.install_snap(before='case "$*" in *create*) echo broken >&2; exit 1;; esac')
        assert scene.run("echo roses > plants; cat plants") == "roses\n"
        scene.run("echo tulips > plants")
        scene.machine.install_snap()
        scene.run("echo lilies > plants")

    assert [gap.command for gap in history.gaps] == [
        "echo roses > plants; cat plants",
        "echo tulips > plants",
    ]
    assert "broken" in history.gaps[0].reason
    assert [record.levelno for record in caplog.records if record.name.startswith("treesnap")] == [
        logging.WARNING
    ]
    assert labels(scene.there())[1:] == ["echo lilies > plants", "the recording ends"]


def test_a_checkpoint_that_hangs_is_given_up(scene):
    with scene.recorded(patience_s=4) as history:
        scene.machine.install_snap(before='case "$*" in *create*) sleep 1000;; esac')
        begun_s = time.monotonic()
        scene.run("echo roses > plants")
        took_s = time.monotonic() - begun_s
        scene.machine.install_snap()

    assert took_s < 15
    assert len(history.gaps) == 1
    assert (scene.project / "plants").read_text() == "roses\n"


def test_a_history_that_cannot_be_handed_out_stops_no_command(scene):
    with scene.recorded() as history:
        scene.machine.install_snap(before='case "$*" in *push*) exit 7;; esac')
        scene.run("echo roses > plants")
        scene.machine.install_snap()

    assert "was not handed out: snap failed in the sandbox, exit 7" in history.gaps[0].reason
    assert history.handed_out.newest_id == scene.there()[0].id


def test_two_commands_at_once_have_a_checkpoint_each(scene):
    with scene.recorded() as history:
        threads = [
            threading.Thread(target=scene.run, args=(f"echo {number} > file-{number}",))
            for number in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    there = scene.there()
    assert history.gaps == []
    assert sorted(snapshot.record.step for snapshot in there) == [0, 1, 2, 3, 4, 5]
    assert history.handed_out.newest_id == there[0].id
    assert there[0].record.totals.files == 4


# ------------------------------------------------------------------------- refusals


def test_a_sandbox_without_treesnap_says_what_to_install(scene):
    (scene.machine.bin / "snap").unlink()

    with pytest.raises(NotFound, match="pip install treesnap"), scene.recorded():
        scene.run("echo roses > plants")

    assert commands_of_agent(scene.machine) == []


def test_it_can_be_switched_off(scene, monkeypatch):
    monkeypatch.setenv("SNAP_DISABLE", "1")
    (scene.machine.bin / "snap").unlink()

    with scene.recorded() as history:
        scene.run("echo roses > plants")

    assert scene.machine.commands == ["echo roses > plants"]
    assert (history.gaps, history.handed_out) == ([], None)


def test_another_program_of_that_name_is_not_taken_for_it(scene):
    (scene.machine.bin / "snap").write_text("#!/bin/sh\necho snapd 2.6\n")

    with pytest.raises(NotFound, match="no treesnap in the sandbox as 'snap'"), scene.recorded():
        pass


def test_treesnap_may_have_another_name(scene):
    (scene.machine.bin / "snap").rename(scene.machine.bin / "treesnap")

    with scene.recorded(snap=str(scene.machine.bin / "treesnap")) as history:
        scene.run("echo roses > plants")

    assert history.gaps == []


def test_a_directory_that_is_not_there_is_refused_before_anything_runs(scene):
    root = scene.machine.home / "missing"

    with pytest.raises(Refused, match="There is no directory"), scene.recorded(root):
        scene.run("echo roses > plants")

    assert commands_of_agent(scene.machine) == []


def test_a_home_directory_is_refused_unless_forced(scene, tmp_path):
    home, place = scene.machine.home, str(tmp_path / "handed-out")
    with pytest.raises(Refused, match="home"), scene.recorded(home, place=place):
        pass
    with scene.recorded(home, place=place, force=True) as history:
        scene.run("echo roses > plants")
    assert history.gaps == []
    assert history.handed_out.newest_id == scene.there(scene.machine.home)[0].id


def test_a_place_in_the_directory_is_refused(scene):
    home = scene.machine.home

    with pytest.raises(Refused, match="lies in the root"), scene.recorded(home, force=True):
        scene.run("echo roses > plants")

    assert commands_of_agent(scene.machine) == []


def test_the_directory_of_another_sandbox_is_refused(scene, tmp_path):
    with scene.recorded():
        scene.run("echo roses > plants")
    before = sorted(scene.directory.rglob("*"))
    (tmp_path / "second").mkdir()
    scene.machine = Machine(tmp_path / "second")
    scene.project = scene.machine.project
    scene.client = scene.connected(scene.machine)

    with pytest.raises(Refused, match="holds the history of another sandbox"), scene.recorded():
        scene.run("echo tulips > plants")

    assert sorted(scene.directory.rglob("*")) == before


def test_a_directory_in_the_root_of_this_machine_is_refused(scene):
    scene.directory = Path(scene.handle.root) / "history"

    with pytest.raises(InvalidArgument, match="lies in the root"):
        scene.recorded()


@pytest.mark.parametrize("options", [{}, {"remote": "backup"}])
def test_one_place_for_the_history_is_named(scene, options):
    place = (scene.handle, scene.directory) if options else ()

    with pytest.raises(InvalidArgument, match="Say where the history goes"):
        scene.module.recorded(scene.client, str(scene.project), *place, **options)
