// Runs CUDA C++ kernels on the host, for tests: one fiber per CUDA thread.
//
// The threads of a block run one after the other, each until it has to wait:
// at a barrier, or where the lanes of its warp meet. Which goes next is drawn
// from a seed, so that a missing barrier shows as a result that changes with
// the seed. What waits for ever, or at different places, fails the launch and
// is named with file and line. Blocks run one after the other, too, in an order
// drawn from the seed.
//
// Memory is as hostile as CUDA allows: shared memory begins as NaN in every
// block, asynchronous copies land when they are waited for and not before, and
// a touch of memory that is nobody's fails the launch as an illegal address.
// A launch may begin before the work before it is done: some of its blocks then run
// up to their wait, and go on when that work is done.
// Under -fsanitize=thread every CUDA thread is a thread to the sanitizer;
// under -fsanitize=address every access is checked.
//
// A kernel is compiled with this header in front of it, linked to runtime.cpp, and needs no change, but
// for what CUDA itself writes in PTX: those few operations are functions of the
// same name here and in the kernels' own header, which tells the two apart by
// CUDA_ON_HOST:
//
//   mma_m16n8k16_bf16(d, a, b)         mma.sync, bf16 in, sums in f32
//   ldmatrix_x4(r, row)                ldmatrix, plain and .trans
//   ldmatrix_x4_trans(r, row)
//   cp_async_16(shared, global, bytes) cp.async.cg, the rest of 16 is zero
//   cp_async_4(shared, global, bytes)  cp.async.ca of 4 bytes, or zeros
//   cp_async_commit_group()
//   cp_async_wait_group<n>()
//   cp_async_bulk_prefetch_L2(global, bytes)   cp.async.bulk.prefetch.L2
//   cvt_rn_bf16(x)                     cvt.rn.bf16.f32, as its 16 bits
//   cvt_rn_bf16x2(low, high)           cvt.rn.bf16x2.f32, two of them
//   mul_bf16x2(a, b)                   fma.rn.bf16x2 with -0
//   griddepcontrol_launch_dependents() griddepcontrol.launch_dependents
//   griddepcontrol_wait()              griddepcontrol.wait
//   DYNAMIC_SHARED(type, name)         extern __shared__
//
// Blind to speed, to registers, to the bits of tensor cores and of fused
// multiply-adds, and to races between the blocks of one launch.
#pragma once

#define CUDA_ON_HOST 1

#include "language.h"
#include "sanitize.h"
#include "fiber.h"
#include "block.h"
#include "warp.h"
#include "tensor_core.h"
#include "async_copy.h"
#include "programmatic.h"
#include "launch.h"
