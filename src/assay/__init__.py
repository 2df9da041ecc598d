"""assay: the methods of one reading list as working software, each measured beside strong baselines."""

__version__ = "0.1.0"
