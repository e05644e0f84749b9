package journal

import "os"

const childDir = "TOLLGATE_JOURNAL_TEST_CHILD"

func childMain(string) { os.Exit(0) }
