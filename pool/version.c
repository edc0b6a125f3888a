/* The version that the library was built as, which need not be the one a program was compiled for.
 */
#include <rankplan/version.h>

#define TEXT_OF(x)    #x
#define TEXT(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *rp_version(void)
{
    return TEXT(RANKPLAN_VERSION_MAJOR, RANKPLAN_VERSION_MINOR, RANKPLAN_VERSION_PATCH);
}
