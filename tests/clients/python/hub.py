"""Reads models with Hugging Face's libraries.

Arguments: the server's URL, the folder from which `team/mini` was imported, a GGUF file that is `team/quant`, a token
that may read the private `alice/private`, or an empty one, and a scratch folder.
"""

import hashlib
import os
import pathlib
import sys

server, source, gguf, token, scratch = sys.argv[1:]
os.environ["HF_ENDPOINT"] = f"{server}/hf"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import huggingface_hub as hub  # noqa: E402  # reads the environment
from huggingface_hub.errors import (  # noqa: E402
    EntryNotFoundError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

source, gguf, scratch = pathlib.Path(source), pathlib.Path(gguf), pathlib.Path(scratch)
cache = scratch / "cache"
api = hub.HfApi(token=token or False)


def files_below(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def raises(kind, run):
    try:
        run()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


original = files_below(source)

# 1. A snapshot has the original files byte for byte, by whichever revision it is named.
whole = pathlib.Path(hub.snapshot_download("team/mini", cache_dir=cache))
assert files_below(whole) == original
commit = whole.name
assert len(commit) == 40, commit
for revision in ["latest", commit, "main"]:
    again = hub.snapshot_download("team/mini", revision=revision, cache_dir=cache)
    assert pathlib.Path(again) == whole, (revision, again)

# 2. Patterns select files, and a folder without a cache can be asked for.
some = scratch / "some"
hub.snapshot_download("team/mini", local_dir=some, allow_patterns=["*.json"], cache_dir=cache)
got = {name for name in files_below(some) if not name.startswith(".cache/")}
assert got == {name for name in original if name.endswith(".json")}, got

# 3. A file that is in the cache is not sent again, not even without a connection.
path = hub.hf_hub_download("team/mini", "model.safetensors", cache_dir=cache)
stat = os.stat(path)
again = hub.hf_hub_download("team/mini", "model.safetensors", cache_dir=cache)
offline = hub.hf_hub_download("team/mini", "model.safetensors", cache_dir=cache, local_files_only=True)
assert path == again == offline and os.stat(path).st_mtime_ns == stat.st_mtime_ns
assert pathlib.Path(path).resolve().name == hashlib.sha256(original["model.safetensors"]).hexdigest()

# 4. An interrupted download continues where it ended.
meta = hub.get_hf_file_metadata(hub.hf_hub_url("team/mini", "model.safetensors"), token=False)
content = original["model.safetensors"]
assert (meta.commit_hash, meta.size) == (commit, len(content)), meta
assert meta.etag == hashlib.sha256(content).hexdigest(), meta
resumed = scratch / "resumed"
partial = resumed / "models--team--mini" / "blobs" / f"{meta.etag}.incomplete"
partial.parent.mkdir(parents=True)
partial.write_bytes(content[: len(content) // 2])
path = hub.hf_hub_download("team/mini", "model.safetensors", cache_dir=resumed)
assert pathlib.Path(path).read_bytes() == content

# 5. What is known of a model, its tree and its revisions.
info = api.model_info("team/mini", files_metadata=True)
assert info.sha == commit and info.id == "team/mini" and "llama" in info.tags, info
sizes = {sibling.rfilename: sibling.size for sibling in info.siblings}
assert sizes == {name: len(content) for name, content in original.items()}, sizes
assert info.safetensors.total > 4_000_000 and info.created_at and info.last_modified, info
tree = list(api.list_repo_tree("team/mini", recursive=True, expand=True))
folders = [entry.path for entry in tree if isinstance(entry, hub.hf_api.RepoFolder)]
tree = [entry for entry in tree if isinstance(entry, hub.hf_api.RepoFile)]
assert folders == ["training"] and {entry.path for entry in tree} == set(original), tree
assert all(entry.lfs.sha256 == hashlib.sha256(original[entry.path]).hexdigest() for entry in tree), tree
refs = api.list_repo_refs("team/mini", include_pull_requests=True)
assert [(branch.name, branch.target_commit) for branch in refs.branches] == [("main", commit)], refs
assert {tag.name for tag in refs.tags} == {"latest", "v1"}, refs
paths = api.get_paths_info("team/mini", ["config.json", "none.json"], expand=True)
assert [entry.path for entry in paths] == ["config.json"], paths
assert api.file_exists("team/mini", "config.json") and not api.file_exists("team/mini", "none.json")
assert api.repo_exists("team/mini") and not api.repo_exists("team/none")
assert api.revision_exists("team/mini", "v1") and not api.revision_exists("team/mini", "v9")
assert [commit.commit_id for commit in api.list_repo_commits("team/mini")] == [commit]
tensors = api.get_safetensors_metadata("team/mini")
assert "model.embed_tokens.weight" in tensors.weight_map, tensors
api.auth_check("team/mini")
verified = api.verify_repo_checksums("team/mini", cache_dir=cache)
assert verified.checked_count == len(original) and not verified.mismatches, verified

# 6. Errors have their own exceptions.
raises(RepositoryNotFoundError, lambda: api.model_info("team/none"))
raises(RepositoryNotFoundError, lambda: hub.hf_hub_download("team/none", "a", cache_dir=cache))
error = raises(RevisionNotFoundError, lambda: api.model_info("team/mini", revision="v9"))
assert "latest, v1" in str(error), error
raises(RevisionNotFoundError, lambda: hub.hf_hub_download("team/mini", "a", revision="v9", cache_dir=cache))
raises(EntryNotFoundError, lambda: hub.hf_hub_download("team/mini", "none.json", cache_dir=cache))
no_exist = cache / "models--team--mini" / ".no_exist" / commit / "none.json"
assert no_exist.exists(), "the absence of a file was not remembered"
raises(EntryNotFoundError, lambda: list(api.list_repo_tree("team/mini", "none")))
raises(
    LocalEntryNotFoundError,
    lambda: hub.hf_hub_download("team/mini", "README.md", cache_dir=scratch / "x", local_files_only=True),
)

# 7. A GGUF file that was pushed whole.
path = hub.hf_hub_download("team/quant", gguf.name, cache_dir=cache)
assert pathlib.Path(path).read_bytes() == gguf.read_bytes()

# 8. Lists, over several pages.
names = lambda **query: [model.id for model in api.list_models(**query)]
shared = ["team/mini", "team/quant"]
pages = [f"page/model-{number}" for number in range(5)]
assert names(author="page") == pages, names(author="page")
for size in [1, 2, 3, 5]:
    listed = list(hub.utils.paginate(f"{server}/hf/api/models", {"author": "page", "limit": size}, {}))
    assert [model["id"] for model in listed] == pages, (size, listed)
newest = list(hub.utils.paginate(f"{server}/hf/api/models", {"sort": "lastModified", "limit": 2}, {}))
assert sorted(model["id"] for model in newest) == sorted(shared + pages), newest
times = [model["lastModified"] for model in newest]
assert times == sorted(times, reverse=True), times
pulled = list(api.list_models(sort="downloads"))
assert {model.id for model in pulled} == {*shared, *pages, *(["alice/private"] if token else [])}, pulled
counts = [model.downloads for model in pulled]
assert counts == sorted(counts, reverse=True), counts
assert api.model_info("team/mini", expand=["downloadsAllTime"]).downloads_all_time is not None
assert names(search="QUANT") == ["team/quant"] and names(search="none") == []
assert names(filter="gguf") == ["team/quant"] and names(filter=["gguf", "safetensors"]) == []
assert names(num_parameters="min:1M,max:1B", author="team") == ["team/mini"]
generating = dict(pipeline_tag="text-generation", author="team")
assert names(filter=["LLAMA", "safetensors"], **generating) == ["team/mini"], list(api.list_models(full=True))
assert names(pipeline_tag="summarization") == [] and names(filter="license:none") == []
assert len(names(limit=3)) == 3

# 9. Private models.
if token:
    folder = hub.snapshot_download("alice/private", token=token, cache_dir=cache)
    assert files_below(pathlib.Path(folder)) == original
    assert names(author="alice") == ["alice/private"] and api.model_info("alice/private").private
anonymous = hub.HfApi(token=False)
raises(RepositoryNotFoundError, lambda: anonymous.model_info("alice/private"))
raises(RepositoryNotFoundError, lambda: hub.hf_hub_download("alice/private", "config.json", token=False, cache_dir=scratch / "y"))
assert [model.id for model in anonymous.list_models(author="alice")] == []
if token:
    wrong = raises(hub.errors.HfHubHTTPError, lambda: hub.HfApi(token="hf_" + "x" * 34).model_info("team/mini"))
    assert not isinstance(wrong, RepositoryNotFoundError), wrong

# 10. The command line.
import subprocess  # noqa: E402

hf = pathlib.Path(sys.executable).with_name("hf")
target = scratch / "cli"
run = subprocess.run([hf, "download", "team/mini", "config.json", "--local-dir", target], capture_output=True, text=True)
assert run.returncode == 0, run.stderr
assert (target / "config.json").read_bytes() == original["config.json"]

# 11. transformers reads tokenizer and configuration.
import transformers  # noqa: E402

tokenizer = transformers.AutoTokenizer.from_pretrained("team/mini", cache_dir=cache)
assert tokenizer.decode(tokenizer("Define water.").input_ids, skip_special_tokens=True) == "Define water."
config = transformers.AutoConfig.from_pretrained("team/mini", cache_dir=cache)
assert config.model_type == "llama", config
