# Completes `lode` in fish: the program itself knows the words.
complete --keep-order --exclusive --command lode --arguments "(LODE_COMPLETE=fish lode -- (commandline --current-process --tokenize --cut-at-cursor) (commandline --current-token))"
