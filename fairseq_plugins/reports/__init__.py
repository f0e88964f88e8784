"""Results of commands as text, figures and pictures.

====================================  ================================================================================
``report``                            ``Report``: the result of a command: text, figures for JSON, and a picture
``tables``, ``pictures``              parts of reports
``provenance``                        date, code and machine of figures
``training_log``                      runs, from their logs and checkpoints
``learning_curves``, ``comparison``   reports on runs
``analyses``, ``experts``             reports on trained models
``sentences``                         pictures of attention and surprisal
``reranking``                         reports on reranked parse trees
====================================  ================================================================================
"""
