"""Publishes models with Hugging Face's libraries.

Arguments: the server's URL, the folder of a small model, the namespace to publish in, a token that may write there and
one that may only read, or two empty ones on an open server, the size of the large file in MiB, and a scratch folder.
"""

import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import time
import urllib.parse

server, source, namespace, token, reader, large_mib, scratch = sys.argv[1:]
os.environ["HF_ENDPOINT"] = f"{server}/hf"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
if token:
    os.environ["HF_TOKEN"] = token

import huggingface_hub as hub  # noqa: E402  # reads the environment
from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete  # noqa: E402
from huggingface_hub.errors import (  # noqa: E402
    EntryNotFoundError,
    HfHubHTTPError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

source, scratch = pathlib.Path(source), pathlib.Path(scratch)
api = hub.HfApi(token=token or False)
name = f"{namespace}/published"


def files_below(folder):
    files = (path for path in folder.rglob("*") if path.is_file() and ".cache" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def raises(kind, run):
    try:
        run()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def status(run):
    return raises(HfHubHTTPError, run).response.status_code


def listed(repository=name, revision=None):
    return set(api.list_repo_files(repository, revision=revision))


# 1. A repository. It exists, has no files yet, and cannot be created twice.
raises(RepositoryNotFoundError, lambda: api.upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id=name))
url = api.create_repo(name)
assert (url.repo_id, str(url)) == (name, f"{server}/hf/{name}"), url
assert api.create_repo(name, exist_ok=True).repo_id == name
assert status(lambda: api.create_repo(name)) == 409
assert api.repo_exists(name) and listed() == set()
# Without a namespace, it is in the caller's own.
if token:
    own = api.create_repo("own-model")
    assert own.repo_id == f"{api.whoami()['name']}/own-model", own
    api.delete_repo(own.repo_id)
else:
    assert status(lambda: api.create_repo("own-model")) == 400
empty = api.model_info(name).sha

# 2. One file at a time. What does not change is no commit.
first = api.upload_file(path_or_fileobj=b"hello\n", path_in_repo="notes/a.txt", repo_id=name, commit_message="One")
assert first.oid != empty and first.oid == api.model_info(name).sha, first
assert first.repo_url.repo_id == name, first
again = api.upload_file(path_or_fileobj=b"hello\n", path_in_repo="notes/a.txt", repo_id=name)
assert again.oid == first.oid
api.upload_file(path_or_fileobj=b"", path_in_repo="notes/empty", repo_id=name)
big_inline = os.urandom(9_000_000)
api.upload_file(path_or_fileobj=big_inline, path_in_repo="inline.bin", repo_id=name)
path = hub.hf_hub_download(name, "inline.bin", cache_dir=scratch / "cache")
assert pathlib.Path(path).read_bytes() == big_inline
assert listed() == {"notes/a.txt", "notes/empty", "inline.bin"}

# 3. Several operations in one commit, and a parent that has moved.
head = api.model_info(name).sha
operations = [
    CommitOperationDelete("notes/", is_folder=True),
    CommitOperationAdd("kept.txt", b"kept"),
    CommitOperationCopy("inline.bin", "copy.bin"),
]
done = api.create_commit(name, operations, commit_message="Several", parent_commit=head)
assert listed() == {"inline.bin", "copy.bin", "kept.txt"}, listed()
titles = [commit.title for commit in api.list_repo_commits(name)]
assert titles[0] == "Several" and titles[-2:] == ["One", "Create the repository"], titles
stale = [CommitOperationAdd("stale.txt", b"x")]
assert status(lambda: api.create_commit(name, stale, commit_message="Stale", parent_commit=head)) == 412
api.delete_file("copy.bin", name)
assert listed() == {"inline.bin", "kept.txt"}
missing = raises(EntryNotFoundError, lambda: api.delete_file("none", name))
assert "doesn't exist: none" in str(missing), missing
error = raises(EntryNotFoundError, lambda: api.create_commit(
    name, [CommitOperationDelete("none"), CommitOperationAdd("b", b"x")], commit_message="None"))
assert "doesn't exist" in str(error), error
twin = [CommitOperationAdd("KEPT.txt", b"x")]
assert status(lambda: api.create_commit(name, twin, commit_message="Twin")) == 400
pull_request = [CommitOperationAdd("c", b"x")]
assert status(lambda: api.create_commit(name, pull_request, commit_message="PR", create_pr=True)) in (400, 403)

# 4. A card is checked before it is sent.
card = "---\nlicense: mit\ntags:\n- tiny\n---\n# Tiny\n"
api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=name)
raises(ValueError, lambda: api.upload_file(
    path_or_fileobj=b"---\nlicense: [mit\n---\n", path_in_repo="README.md", repo_id=name))

# 5. A folder of 300 files, again, and with files that are ignored or deleted.
folder = scratch / "folder"
for number in range(300):
    file = folder / f"part-{number % 7}" / f"{number}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"file {number}\n" * (1 + number % 50))
api.upload_folder(repo_id=name, folder_path=folder, path_in_repo="many")
below = {f"many/{path}" for path in files_below(folder)}
assert len(below) == 300 and below <= listed()
head = api.model_info(name).sha
api.upload_folder(repo_id=name, folder_path=folder, path_in_repo="many")
assert api.model_info(name).sha == head, "the same folder again is no commit"
(folder / "part-0" / "0.txt").write_text("changed")
api.upload_folder(repo_id=name, folder_path=folder / "part-0", path_in_repo="many/part-0", delete_patterns=["7.txt", "x"])
assert {"many/part-0/0.txt", "many/part-0/7.txt"} <= listed(), "what is sent again is not deleted"
ignoring = f"{namespace}/ignoring"
api.create_repo(ignoring)
(folder / ".gitignore").write_text("*.log\npart-[1-6]/\n")
(folder / "debug.log").write_text("x")
api.upload_folder(repo_id=ignoring, folder_path=folder)
api.upload_file(path_or_fileobj=b"x", path_in_repo="later.log", repo_id=ignoring)
kept = {path for path in files_below(folder) if path.startswith("part-0/")} | {".gitignore"}
assert listed(ignoring) == kept, listed(ignoring) ^ kept
api.delete_folder("many", name)
assert listed() == {"inline.bin", "kept.txt", "README.md"}

# 6. Tags and branches.
api.create_tag(name, tag="v1", tag_message="The first")
api.create_tag(name, tag="v1", exist_ok=True)
assert status(lambda: api.create_tag(name, tag="v1")) == 409
api.create_branch(name, branch="next", revision="v1")
api.create_branch(name, branch="next", exist_ok=True)
moved = api.upload_file(path_or_fileobj=b"next", path_in_repo="next.txt", repo_id=name, revision="next")
assert "next.txt" in listed(revision="next") and "next.txt" not in listed()
assert api.model_info(name, revision="next").sha == moved.oid
raises(RevisionNotFoundError, lambda: api.upload_file(
    path_or_fileobj=b"x", path_in_repo="a", repo_id=name, revision="none"))
refs = api.list_repo_refs(name)
assert {"v1", "next"} <= {tag.name for tag in refs.tags}, refs

# 7. A checkpoint becomes a model, in one commit and in several.
model = f"{namespace}/tiny"
original = files_below(source)
api.create_repo(model)
parts = [path for path in original if path != "config.json"]
for some in [parts, ["config.json"]]:
    add = [CommitOperationAdd(path, original[path]) for path in some]
    api.create_commit(model, add, commit_message=f"{len(some)} files")
got = pathlib.Path(hub.snapshot_download(model, cache_dir=scratch / "cache"))
assert files_below(got) == original
api.upload_file(path_or_fileobj=card.encode(), path_in_repo="README.md", repo_id=model)
# The server reads the tensors after the commit.
deadline = time.monotonic() + 60
while (info := api.model_info(model)).safetensors is None and time.monotonic() < deadline:
    time.sleep(0.2)
assert info.safetensors.total > 4_000_000, info

# 8. A large file by LFS, in one request and in parts, killed and repeated.
large = scratch / "large.bin"
with large.open("wb") as file:
    block = os.urandom(1 << 20)
    for number in range(int(large_mib)):
        file.write(number.to_bytes(8, "little") + block[8:])
sha256 = hashlib.file_digest(large.open("rb"), "sha256").hexdigest()
lfs = dict(os.environ, HF_HUB_DISABLE_XET="1")
# Ends, like a process that is killed, after it has hashed the file and has sent half of it.
dying = f"""
import io, os, huggingface_hub as hub
class Dying(io.BufferedReader):
    left = {int(large_mib) << 20} * 3 // 2
    def read(self, size=-1):
        Dying.left -= size if size > 0 else 0
        if Dying.left < 0:
            os._exit(9)
        return super().read(size)
file = Dying(open({str(large)!r}, "rb", buffering=0))
hub.HfApi(token={token or False!r}).upload_file(path_or_fileobj=file, path_in_repo="large.bin", repo_id={name!r})
"""
killed = subprocess.run([sys.executable, "-c", dying], env=lfs, capture_output=True, text=True)
assert killed.returncode == 9, (killed.returncode, killed.stderr)
assert "large.bin" not in listed()
again = f"""
import huggingface_hub as hub
hub.HfApi(token={token or False!r}).upload_file(
    path_or_fileobj={str(large)!r}, path_in_repo="large.bin", repo_id={name!r})
"""
for attempt in range(2):
    run = subprocess.run([sys.executable, "-c", again], env=lfs, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
entry = api.get_paths_info(name, ["large.bin"])[0]
assert (entry.size, entry.lfs.sha256) == (int(large_mib) << 20, sha256), entry
stat = hub.get_hf_file_metadata(hub.hf_hub_url(name, "large.bin"), token=token or False)
assert stat.etag == sha256
hub.hf_hub_download(name, "large.bin", local_dir=scratch / "large")
assert hashlib.file_digest((scratch / "large" / "large.bin").open("rb"), "sha256").hexdigest() == sha256
# A file object goes by LFS even where Xet is installed, and so do the same bytes under another name.
api.upload_file(path_or_fileobj=large.open("rb"), path_in_repo="same.bin", repo_id=name)
assert {"large.bin", "same.bin"} <= listed()
api.create_commit(
    name, [CommitOperationDelete("same.bin"), CommitOperationDelete("large.bin")], commit_message="Large")

# 9. The same by Xet, without any setting: cut off and killed after a half, repeated, and again under another name.
# Its content is new: the one above is stored.
with large.open("r+b") as file:
    for number in range(int(large_mib)):
        file.seek(number << 20)
        file.write(os.urandom(1 << 19))
sha256 = hashlib.file_digest(large.open("rb"), "sha256").hexdigest()


class Relay:
    """Passes connections on to the server, and counts what clients send."""

    def __init__(self):
        self.sent = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/hf"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            address = urllib.parse.urlsplit(server)
            upstream = socket.create_connection((address.hostname, address.port))
            threading.Thread(target=self.copy, args=(client, upstream, True), daemon=True).start()
            threading.Thread(target=self.copy, args=(upstream, client, False), daemon=True).start()

    def copy(self, source, target, counts):
        try:
            while piece := source.recv(1 << 16):
                target.sendall(piece)
                self.sent += len(piece) if counts else 0
            target.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, target):
                end.close()


def upload_by_xet(relay, path, repository=name, home=None):
    code = f"""
import huggingface_hub as hub
hub.HfApi(token={token or False!r}).upload_file(
    path_or_fileobj={str(large)!r}, path_in_repo={path!r}, repo_id={repository!r})
"""
    env = dict(os.environ, HF_ENDPOINT=relay.url)
    if home:
        env["HF_HOME"] = str(home)
    return subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def uploaded(run):
    output, _ = run.communicate()
    assert run.returncode == 0, output.decode()


relay, half = Relay(), int(large_mib) << 19
run = upload_by_xet(relay, "xet.bin")
while relay.sent < half and run.poll() is None:
    time.sleep(0.01)
run.kill()
run.communicate()
assert relay.sent >= half, "the upload ended before it was killed"
assert "xet.bin" not in listed()
uploaded(upload_by_xet(relay, "xet.bin"))
entry = api.get_paths_info(name, ["xet.bin"])[0]
assert (entry.size, entry.lfs.sha256) == (int(large_mib) << 20, sha256), entry
hub.hf_hub_download(name, "xet.bin", local_dir=scratch / "large")
assert hashlib.file_digest((scratch / "large" / "xet.bin").open("rb"), "sha256").hexdigest() == sha256
# The client sends no content again, only some 50 bytes for each chunk of about 64 KiB, and the server stores nothing again if
# another client does.
head, before = api.model_info(name).sha, relay.sent
uploaded(upload_by_xet(relay, "xet.bin"))
assert api.model_info(name).sha == head
uploaded(upload_by_xet(relay, "same.bin"))
assert relay.sent - before < (1 << 19) + int(large_mib) * 1024, relay.sent - before
uploaded(upload_by_xet(relay, "other.bin", home=scratch / "other-home"))
entries = api.get_paths_info(name, ["same.bin", "other.bin"])
assert [entry.lfs.sha256 for entry in entries] == [sha256, sha256], entries
# Bytes in memory, and another repository.
elsewhere = f"{namespace}/by-xet"
api.create_repo(elsewhere)
memory = os.urandom(11_000_000)
api.upload_file(path_or_fileobj=memory, path_in_repo="memory.bin", repo_id=elsewhere)
uploaded(upload_by_xet(relay, "xet.bin", elsewhere))
entries = {entry.path: entry.lfs.sha256 for entry in api.get_paths_info(elsewhere, ["memory.bin", "xet.bin"])}
assert entries == {"memory.bin": hashlib.sha256(memory).hexdigest(), "xet.bin": sha256}, entries
api.create_commit(
    name, [CommitOperationDelete(f"{kind}.bin") for kind in ("xet", "same", "other")], commit_message="Xet")

# 10. The command line.
hf = pathlib.Path(sys.executable).with_name("hf")
command = f"{namespace}/command"
run = subprocess.run([hf, "upload", command, source, "."], capture_output=True, text=True)
assert run.returncode == 0, run.stderr + run.stdout
assert listed(command) == set(original)
run = subprocess.run(
    [hf, "upload", command, source / "config.json", "again.json", "--commit-message", "Again"],
    capture_output=True,
    text=True,
)
assert run.returncode == 0, run.stderr
assert "again.json" in listed(command)

# 11. transformers pushes a model, part by part, and reads it back.
import transformers  # noqa: E402

pushed = f"{namespace}/pushed"
tokenizer = transformers.AutoTokenizer.from_pretrained(source)
tokenizer.push_to_hub(pushed)
transformers.AutoConfig.from_pretrained(source).push_to_hub(pushed)
api.upload_file(path_or_fileobj=source / "model.safetensors", path_in_repo="model.safetensors", repo_id=pushed)
assert {"README.md", "config.json", "tokenizer.json", "model.safetensors"} <= listed(pushed), listed(pushed)
again = transformers.AutoTokenizer.from_pretrained(pushed, cache_dir=scratch / "cache")
assert again("Define water.").input_ids == tokenizer("Define water.").input_ids
assert transformers.AutoConfig.from_pretrained(pushed, cache_dir=scratch / "cache").model_type == "llama"

# 12. Who may not write is refused.
if token:
    for wrong, expect in [(reader, 403), ("hf_" + "x" * 34, 401), (False, 401)]:
        refused = hub.HfApi(token=wrong)
        for run in [
            lambda: refused.upload_file(path_or_fileobj=b"x", path_in_repo="x", repo_id=model),
            lambda: refused.create_repo(f"{namespace}/other"),
            lambda: refused.create_tag(model, tag="theirs"),
            lambda: refused.delete_repo(model),
        ]:
            got = status(run)
            # A reader does not learn whether another repository exists.
            assert got == expect or (expect == 403 and got == 404), (wrong, got)
    private = f"{namespace}/private"
    api.create_repo(private, private=True)
    assert api.model_info(private).private
    api.update_repo_settings(private, visibility="public")
    assert not hub.HfApi(token=False).model_info(private).private
    api.update_repo_settings(private, private=True)
    raises(RepositoryNotFoundError, lambda: hub.HfApi(token=False).model_info(private))
    api.delete_repo(private)

# 13. A repository moves with its history, a copy has the same one, and a squashed branch has one commit.
moving, moved, copied = f"{namespace}/moving", f"{namespace}/moved", f"{namespace}/copied"
api.create_repo(moving)
for number in range(2):
    api.upload_file(path_or_fileobj=b"%d" % number, path_in_repo=f"{number}.txt", repo_id=moving)
commits = [commit.commit_id for commit in api.list_repo_commits(moving)]
api.move_repo(moving, moved)
assert not api.repo_exists(moving) and listed(moved) == {"0.txt", "1.txt"}
assert [commit.commit_id for commit in api.list_repo_commits(moved)] == commits
raises(RepositoryNotFoundError, lambda: api.move_repo(moving, f"{namespace}/else"))
assert status(lambda: api.move_repo(moved, model)) == 409
url = api.duplicate_repo(moved, copied)
assert (url.repo_id, url.files_copy_pending) == (copied, False), url
assert api.duplicate_repo(moved, copied, exist_ok=True).repo_id == copied
assert status(lambda: api.duplicate_repo(moved, copied)) == 409
assert [commit.commit_id for commit in api.list_repo_commits(copied)] == commits
api.super_squash_history(copied, commit_message="All")
assert [(commit.commit_id, commit.title) for commit in api.list_repo_commits(copied)] == [(commits[0], "All")]
raises(RevisionNotFoundError, lambda: api.super_squash_history(copied, branch="none"))
raises(RevisionNotFoundError, lambda: api.model_info(copied, revision=commits[1]))
assert listed(copied) == listed(moved) and listed(moved, commits[1]) == {"0.txt"}
for repository in (moved, copied):
    api.delete_repo(repository)

# 14. What is deleted is gone, and its name is free.
api.delete_repo(command)
assert not api.repo_exists(command)
api.delete_repo(command, missing_ok=True)
raises(RepositoryNotFoundError, lambda: api.delete_repo(command))
api.create_repo(command)
assert listed(command) == set()
print(json.dumps({"published": [name, model, pushed]}))
