"""What commands found, as text, figures and pictures.

====================================  ================================================================================
``report``                            ``Report``: figures for JSON, text and a picture of what a command found
``tables``, ``pictures``              parts of reports
``provenance``                        date, code and machine of figures
``training_log``                      runs, from their logs and checkpoints
``learning_curves``, ``comparison``   of runs
``analyses``, ``experts``             of trained models
``sentences``                         pictures of attention and surprisal
``reranking``                         of parse trees
====================================  ================================================================================
"""
