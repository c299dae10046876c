"""Examines a run before it costs anything: `python doctor.py <the same settings as for train.py>`."""

if __name__ == "__main__":  # the import too: processes that grade answers read this file, and need none of it
    from sgrpo_lightning.run import command, doctor

    command(doctor, __file__, config_name="train")
