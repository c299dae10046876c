def test_quick(cli, quick, tmp_path):
    ended = cli(*quick)
    print(ended)
    import subprocess
    print(subprocess.run("find . ; cat runs/*/*/*/*/metrics.csv; cat runs/*/*/*/*/provenance.json", shell=True, capture_output=True, text=True).stdout)
    assert 0
