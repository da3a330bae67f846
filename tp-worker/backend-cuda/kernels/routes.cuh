// Rows that share an expert of a mixture, in tiles that a block multiplies.
#pragma once
#include "device.cuh"

constexpr unsigned MOST_EXPERTS = 1024, MOST_GROUPS = 64;

// Places `first..first + rows` in the order by experts.
struct __align__(16) ExpertTile { unsigned expert, first, rows, pad; };
