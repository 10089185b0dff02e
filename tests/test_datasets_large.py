"""ShareGPT4V's own size, 1.2 M records: a start takes seconds once they are indexed, and a worker little memory."""

import json
import pickle
import subprocess
import sys
import textwrap

import pytest

from debias_sd.datasets.sharegpt4v import HELD_OUT, read_sharegpt4v

pytestmark = pytest.mark.slow
RECORDS = 1_246_901
START = """
    import json, resource, sys, time
    started = time.monotonic()
    from debias_sd.datasets.names import open_records
    imported, before = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    records = open_records(f"sharegpt4v:{sys.argv[1]}")
    opened = time.monotonic()
    texts = [records[index].captions[0] for index in range(0, len(records), len(records) // 1000)]
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    times = {"import": imported - started, "open": opened - imported, "kilobytes": used}
    print(json.dumps(times | {"records": len(records), "texts": len(texts), "last": texts[-1]}))
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A list with the records of the original, shorter captions, and few folders: 240 MB."""
    path = tmp_path_factory.mktemp("large") / "share-captioner_coco_lcs_sam_1246k_1107.json"
    with path.open("w", encoding="utf-8") as file:
        for number in range(RECORDS):
            said = [{"from": "human", "value": "<image>"}, {"from": "gpt", "value": f"Picture {number}. It is red."}]
            row = {"id": str(number), "image": f"coco/{number % 1000:04d}/{number:09d}.jpg", "conversations": said}
            file.write(("[" if number == 0 else ",\n") + json.dumps(row))
        file.write("]")
    return path


def test_a_start_takes_seconds_once_indexed_and_a_worker_little_memory(large):
    assert len(read_sharegpt4v(large)) == RECORDS - HELD_OUT  # goes through the list once
    command = [sys.executable, "-c", textwrap.dedent(START), str(large)]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (found["records"], found["texts"]) == (RECORDS - HELD_OUT, 1001)
    assert found["last"].startswith("Picture 1246")
    assert found["open"] < 5
    assert found["kilobytes"] < 150_000  # the index and the pages of it that were looked at; the list has 240 MB


def test_what_travels_to_a_worker_does_not_grow_with_the_texts(large):
    content = pickle.dumps(read_sharegpt4v(large))
    assert len(content) < 4 * RECORDS + 10_000  # 4 bytes a record: which of them are used
