"""``dranet doctor``: reads what :mod:`dranet.desk.doctor` judges, prints the findings, packs a bundle."""
