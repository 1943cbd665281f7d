"""The table of tests/gpu/run."""

GIGA = 1e9
# Goals as shares of the copy bandwidth, for products with one column and for whole models: by bits per weight.
GOALS = {16: (0.85, 0.75), 8: (0.70, 0.65), 4: (0.60, 0.50)}
BITS = {"BF16": 16, "F16": 16, "Q8_0": 8, "int8": 8, "Q6_K": 8, "Q4_K": 4, "Q4_K_M": 4, "Q4_0": 4, "int4": 4}


def rows(headings, lines):
    """A table in Markdown."""
    table = [headings, ["---"] + ["---:"] * (len(headings) - 1), *lines]
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in table)


def percent(share):
    return "" if share is None else f"{100 * share:.0f}%"


def goal(kind, whole):
    goals = GOALS.get(BITS.get(kind))
    return percent(goals and goals[whole])


def products(found):
    """Bandwidths of products with one column, as shares of what copies read and write."""
    copy = found.get("copy_bytes_per_second")
    lines = [["copy, read and written", f"{copy / GIGA:.0f}", "100%", ""]] if copy else []
    for kind, rate in found.get("products", {}).items():
        lines.append([f"product with one column, {kind}", f"{rate / GIGA:.0f}", percent(copy and rate / copy), goal(kind, 0)])
    return rows(["bandwidth", "GB/s", "share", "goal"], lines) if lines else ""


def speeds(measured, copy):
    lines = []
    for model in measured:
        rate = model["tokens_per_second"]
        share = rate * model["weight_bytes"] / copy if copy and model.get("weight_bytes") else None
        prompt = model.get("prompt_tokens_per_second")
        lines.append([model["model"], f"{rate:.1f}", f"{prompt:.0f}" if prompt else "", percent(share),
                      goal(model["kind"], 1) if share else ""])
    return rows(["model, one client", "tokens/s", "prompt tokens/s", "share of the copy", "goal"], lines) if lines else ""


def table(report):
    """The summary, the bandwidths and the speeds."""
    device = report["doctor"]["device"]["selected"]
    cuda = report["doctor"].get("cuda") or {}
    driver, nvrtc = ((cuda.get(name) or {}).get("version") for name in ("driver", "nvrtc"))
    text = f"{device}, CUDA of the driver {driver}, NVRTC {nvrtc}, {report['date']}\n\n"
    lines = []
    for part, problems in report["problems"].items():
        lines.append([part, "failed" if problems else "passed", report["seconds"][part]])
    lines += [[part, "left out: not enough time", ""] for part in report["left_out"]]
    text += rows(["part", "result", "seconds"], lines) + "\n"
    found = report.get("kernels", {})
    if compared := report.get("models"):
        text += f"{compared['cases']} prompts of {compared['models']} models: {compared['different']} with other ids\n\n"
    text += "\n".join(filter(None, [products(found), speeds(report.get("speed", []), found.get("copy_bytes_per_second"))]))
    for part, problems in report["problems"].items():
        for problem in problems:
            text += f"\n{part}: {problem}\n"
    return text
