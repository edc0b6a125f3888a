/* The version: the one place where it is written.  The build reads it from here. */
#ifndef RANKPLAN_VERSION_H
#define RANKPLAN_VERSION_H

#include <rankplan/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Of the headers that a program was compiled with.  Before 1.0 a new minor version may change the
 * API; a new patch version never does. */
#define RANKPLAN_VERSION_MAJOR 0
#define RANKPLAN_VERSION_MINOR 1
#define RANKPLAN_VERSION_PATCH 0

/* Of the library that the program runs with, "0.1.0".  Static string.  Any thread. */
RP_API const char *rp_version(void);

#ifdef __cplusplus
}
#endif
#endif
