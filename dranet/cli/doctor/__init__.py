"""``dranet doctor`` on a node: reads what :mod:`dranet.desk.doctor` judges, prints findings, packs a bundle."""
