"""The topology as a picture: ``boxes`` decides what is drawn, ``layout`` where, ``svg`` how."""
