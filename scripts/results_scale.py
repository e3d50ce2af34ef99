"""The results page on large data sets and libraries: what they cost in time and memory."""

from typing import Any


def data_section(measured: dict[str, Any]) -> list[str]:
    """A data set of COCO's size."""
    columns = ("", *(f"{method}ed workers" for method in measured["workers"]))
    found = list(measured["workers"].values())
    rows = {
        "listing the records: seconds of CPU, on the clock": [_times(r["listing"]) for r in found],
        "listing, and training captions as ids: seconds of CPU, on the clock": [
            _times(r["listing_and_words"]) for r in found
        ],
        "first batch: seconds on the clock": [r["first_batch_seconds"] for r in found],
        "memory of all processes after an epoch, MB": [r["all_megabytes"] for r in found],
        "the same with a data set of twenty images": [r["megabytes_without_data"] for r in found],
        "the difference": [r["megabytes_of_the_data"] for r in found],
    }
    return [
        "## A data set of COCO's size",
        "",
        f"{found[0]['images']:,} images with {found[0]['captions']:,} captions in COCO's layout,",
        f"generated, read by a process and its {found[0]['processes'] - 1} workers; memory is the",
        "proportional set size, a page that several processes share counted once.",
        f"`{measured['command']}`, commit {measured['commit']}, {measured['machine']}.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
        *(f"| {what} | {' | '.join(map(str, cells))} |" for what, cells in rows.items()),
        "",
    ]


def _times(measured: dict[str, float]) -> str:
    return f"{measured['cpu_seconds']}, {measured['seconds']}"


def library_section(measured: list[dict[str, Any]]) -> list[str]:
    """A library of photos through each engine."""
    columns = (
        *("engine", "photos/s", "MB: first half, second half, greatest", "records", "each once"),
        *("broken: named", "exit status"),
    )
    lines = [
        "## A library of photos",
        "",
        "Generated photos of 128 × 128, one in a hundred of them broken, through `captioner caption`",
        "with two workers; every record compared with what is known of its photo. Memory is that of all",
        "processes, shared pages counted for each; its course leaves out the first fifth, in which",
        "models are loaded.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for r in measured:
        memory = r["memory_mb"]
        lines.append(
            f"| {r['engine']} | {r['images_per_second']} | {memory['first_half']:,}, "
            f"{memory['second_half']:,}, {memory['greatest']:,} | {r['records']:,} of {r['photos']:,} | "
            f"{'yes' if r['each_photo_once'] else 'no'} | {r['broken']}: "
            f"{'all' if r['broken_ones_named'] else 'not all'} | {r['exit_status']} |"
        )
    lines.append("")
    lines += [
        f"- **{r['engine']}**: `{r['command']}`, commit {r['commit']}, {r['machine']}."
        for r in measured
    ]
    return [*lines, ""]
