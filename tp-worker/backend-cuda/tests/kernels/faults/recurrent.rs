//! Faults planted in kernels of recurrent layers.

use super::Fault;

const MATRICES: &str = "recurrent::matrices_are_watched";
const CONVOLUTIONS: &str = "recurrent::convolutions_are_watched";
const GROUPS: &str = "recurrent::groups_are_watched";

pub(super) const FAULTS: [Fault; 11] = [
    (
        "columns of a convolution before they are found",
        "s/__syncthreads(); *.. sources are found//",
        CONVOLUTIONS,
    ),
    (
        "a short convolution of one factor alone",
        "s/ : product_at(a, source, channel)/ : source[channel]/",
        CONVOLUTIONS,
    ),
    (
        "columns of the row before a tree's node",
        "s/own = ancestor_of(a.batch, at.row, at.node, own);/own = own - 1;/",
        CONVOLUTIONS,
    ),
    (
        "a tree's node behind the node before it",
        "s/const unsigned parent = ancestor_of(a.batch, row, node, node);/const unsigned parent = node - 1;/",
        MATRICES,
    ),
    (
        "tokens of a recurrence too early",
        "s/__syncthreads(); *.. what all threads have asked for is there//",
        MATRICES,
    ),
    (
        "tokens of a recurrence too late",
        "s/__syncthreads(); *.. nobody reads what the next turn overwrites//",
        MATRICES,
    ),
    (
        "a step that is a decay already",
        "s/__syncwarp(); *.. all lanes have the step//",
        MATRICES,
    ),
    (
        "a bias of a convolution is forgotten",
        "s/const bool biased = SCANS && a.bias;/const bool biased = false;/",
        MATRICES,
    ),
    (
        "an update without its step",
        "s/x = __fmul_rn(x, step);//",
        MATRICES,
    ),
    (
        "squares of a group too early",
        "s/__syncthreads(); *.. squares are there//",
        GROUPS,
    ),
    (
        "squares of a group too late",
        "s/__syncthreads(); *.. squares are summed//",
        GROUPS,
    ),
];
