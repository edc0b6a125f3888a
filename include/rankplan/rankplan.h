/* rankplan: ranking models on CPUs, with the same bits everywhere.  All of the public interface. */
#ifndef RANKPLAN_RANKPLAN_H
#define RANKPLAN_RANKPLAN_H

#include <rankplan/gdn.h>
#include <rankplan/graph.h>
#include <rankplan/machine.h>
#include <rankplan/model.h>
#include <rankplan/plan.h>
#include <rankplan/ranker.h>
#include <rankplan/status.h>
#include <rankplan/tokenizer.h>
#include <rankplan/version.h>

#endif
