"""Pictures for other people's benchmarks, in the folders and under the names that their own scripts read."""
