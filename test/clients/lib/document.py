def check_tables(rows, found, update):
    pass

def shows(driver):
    return True, "x"
