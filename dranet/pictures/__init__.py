"""The topology as a picture: facts -> boxes -> places -> SVG -> PNG.

``boxes`` decides what is drawn, ``layout`` where, ``svg`` how. All three are pure.
"""
