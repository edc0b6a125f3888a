/* All of rankplan's public headers. */
#ifndef RANKPLAN_RANKPLAN_H
#define RANKPLAN_RANKPLAN_H

#include <rankplan/graph.h>
#include <rankplan/machine.h>
#include <rankplan/model.h>
#include <rankplan/plan.h>
#include <rankplan/status.h>
#include <rankplan/tokenizer.h>
#include <rankplan/version.h>

#endif
