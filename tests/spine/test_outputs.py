"""What a command writes: whole files, and nothing where the folder can't be written."""

import pytest

from assay.errors import InputError
from assay.outputs import write_folder


def test_text_and_bytes_are_written_and_what_was_there_stays(tmp_path):
    out = tmp_path / "a" / "b"
    out.mkdir(parents=True)
    (out / "kept.txt").write_text("kept")
    write_folder(out, {"text.md": "größer\n", "raw.bin": b"\x00"})
    assert {p.name: p.read_bytes() for p in out.iterdir()} == {
        "kept.txt": b"kept", "text.md": "größer\n".encode(), "raw.bin": b"\x00",
    }


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "out").write_text("a file")
    with pytest.raises(InputError, match="can't be written"):
        write_folder(tmp_path / "out", {"x": "y"})


def test_nothing_half_written_stays(tmp_path):
    (tmp_path / "second").mkdir()
    with pytest.raises(InputError):
        write_folder(tmp_path, {"first": "1", "second": "2", "third/x": "3"})
    assert [p.name for p in tmp_path.iterdir()] == ["second"]
