"""Retrieval of two encoders on your own pictures: python examples/measure.py CLIP TRAINED PICTURES REPORT.json.

Each is a folder of a CLIP with both towers; the report compares them under each robustness probe.
"""

import sys

from debias_sd.cli import main

clip, trained, pictures, report = sys.argv[1:]
encoders = ["--encoder", f"before={clip}", "--encoder", f"after={trained}"]
sys.exit(main(["evaluate", "retrieval", *encoders, "--data", f"folder:{pictures}", "--out", report]))
