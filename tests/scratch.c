/* The fixture of scratch.h. */
#include "tests/scratch.h"

struct maker_dir dir;

int scratch_make(void **state)
{
    (void)state;
    maker_dir_create(&dir);
    return 0;
}

int scratch_remove(void **state)
{
    (void)state;
    maker_dir_remove(&dir);
    return 0;
}
