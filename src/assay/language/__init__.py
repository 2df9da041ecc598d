"""Language models: the small decoders that several methods train from scratch.

`assay.language.tiny` needs torch and is imported by name, never from here.
"""
