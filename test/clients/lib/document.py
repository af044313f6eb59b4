def check_tables(rows, found, update):
    pass
