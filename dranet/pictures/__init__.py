"""The topology as a picture: facts -> boxes -> places -> SVG, and from that PNG.

``boxes`` says what is drawn, ``layout`` where, ``svg`` how. All three are pure.
"""
