//! libcublasLt: a plain `cublasLtMatmul`, by an algorithm that callers choose.

mod descriptors;
mod product;

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::Arc;

use crate::abi::{Answer, Code, Handle, In, Out, Refusal, export};
use crate::world::{enter, lock};
use descriptors::{Descriptor, Layout, Objects, Preference, objects};
use product::{Algorithm, Operands, Product};

/// Error codes of cuBLAS (`cublasStatus_t`).
const NOT_INITIALIZED: Code = 1;
const INVALID_VALUE: Code = 7;
const EXECUTION_FAILED: Code = 13;
const INTERNAL_ERROR: Code = 14;
const NOT_SUPPORTED: Code = 15;

/// Alignment of a workspace's address.
const WORKSPACE_ALIGNMENT: usize = 256;

thread_local! {
    /// The calling thread's number of calls of the heuristic.
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

/// `cublasLtMatmulHeuristicResult_t`
#[repr(C)]
#[derive(Clone, Copy)]
struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: Code,
    waves: f32,
    reserved: [c_int; 4],
}

fn invalid(reason: impl Into<String>) -> Refusal {
    Refusal::new(INVALID_VALUE, reason)
}

/// Refuses calls of the heuristic while the calling thread captures.
fn refuse_capture() -> Answer {
    if lock().captures() {
        let reason = "no heuristic during a capture: ask before, and keep the algorithm";
        return Err(Refusal::new(INTERNAL_ERROR, reason));
    }
    Ok(())
}

/// The product that the descriptor and the layouts describe.
fn product(of: &Objects, descriptor: Handle, layouts: [Handle; 4]) -> Answer<Product> {
    let known = of.layouts(layouts)?;
    Product::new(of.descriptor(descriptor)?, known)
}

/// The algorithm that the caller passed, if any.
fn known(algorithm: In<[u64; 8]>) -> Answer<Option<Algorithm>> {
    let words = algorithm.get(0);
    let decode = |words| Algorithm::decode(words).ok_or_else(|| invalid("no algorithm of ours"));
    words.map(decode).transpose()
}

fn check_served(algorithm: Algorithm, product: &Product) -> Answer {
    let columns = product.columns();
    let unserved = || Refusal::new(NOT_SUPPORTED, format!("{algorithm:?} of {columns} columns"));
    algorithm.serves(product).then_some(()).ok_or_else(unserved)
}

/// Algorithms that serve a product, the best first.
fn algorithms(product: &Product, most_workspace: usize) -> impl Iterator<Item = Algorithm> {
    let all = Algorithm::for_columns(product.columns()).into_iter();
    let product = *product;
    all.filter(move |algorithm| {
        algorithm.workspace() <= most_workspace && algorithm.serves(&product)
    })
}

export! {
    /// Tells the calling thread's number of calls of the heuristic.
    fn fakeCudaHeuristics(count: Out<u64>) {
        count.set(ASKED.get());
        Ok(())
    }

    fn cublasLtCreate(handle: Out<Handle>) {
        let world = enter();
        let context = world.map_err(|_| Refusal::new(NOT_INITIALIZED, "no context"))?.context;
        handle.set(context);
        Ok(())
    }

    fn cublasLtDestroy(_handle: Handle) {
        Ok(())
    }

    fn cublasLtMatrixLayoutCreate(
        layout: Out<Handle>,
        kind: c_int,
        rows: u64,
        columns: u64,
        ld: i64,
    ) {
        let made = Layout::new(kind, rows, columns, ld)?;
        let handle = lock().handle();
        objects().layouts.insert(handle, made);
        layout.set(handle);
        Ok(())
    }

    fn cublasLtMatrixLayoutDestroy(layout: Handle) {
        let known = objects().layouts.remove(&layout);
        known.map(|_| ()).ok_or_else(|| invalid("no such layout"))
    }

    fn cublasLtMatrixLayoutSetAttribute(
        layout: Handle,
        attribute: c_int,
        value: In<u8>,
        bytes: usize,
    ) {
        let mut objects = objects();
        let known = objects.layouts.get_mut(&layout).ok_or_else(|| invalid("no such layout"))?;
        known.set(attribute, &value.all(bytes))
    }

    fn cublasLtMatmulDescCreate(descriptor: Out<Handle>, compute: c_int, scale: c_int) {
        let made = Descriptor::new(compute, scale)?;
        let handle = lock().handle();
        objects().descriptors.insert(handle, made);
        descriptor.set(handle);
        Ok(())
    }

    fn cublasLtMatmulDescDestroy(descriptor: Handle) {
        let known = objects().descriptors.remove(&descriptor);
        known.map(|_| ()).ok_or_else(|| invalid("no such descriptor"))
    }

    fn cublasLtMatmulDescSetAttribute(
        descriptor: Handle,
        attribute: c_int,
        value: In<u8>,
        bytes: usize,
    ) {
        let mut objects = objects();
        let known = objects.descriptors.get_mut(&descriptor);
        known.ok_or_else(|| invalid("no such descriptor"))?.set(attribute, &value.all(bytes))
    }

    fn cublasLtMatmulPreferenceCreate(preference: Out<Handle>) {
        let handle = lock().handle();
        objects().preferences.insert(handle, Preference::default());
        preference.set(handle);
        Ok(())
    }

    fn cublasLtMatmulPreferenceDestroy(preference: Handle) {
        let known = objects().preferences.remove(&preference);
        known.map(|_| ()).ok_or_else(|| invalid("no such preference"))
    }

    fn cublasLtMatmulPreferenceSetAttribute(
        preference: Handle,
        attribute: c_int,
        value: In<u8>,
        bytes: usize,
    ) {
        let mut objects = objects();
        let known = objects.preferences.get_mut(&preference);
        known.ok_or_else(|| invalid("no such preference"))?.set(attribute, &value.all(bytes))
    }

    /// As in cuBLASLt, the best algorithm changes with the number of columns.
    fn cublasLtMatmulAlgoGetHeuristic(
        _handle: Handle,
        descriptor: Handle,
        a: Handle,
        b: Handle,
        c: Handle,
        d: Handle,
        preference: Handle,
        wanted: c_int,
        results: Out<Heuristic>,
        found: Out<c_int>,
    ) {
        refuse_capture()?;
        ASKED.set(ASKED.get() + 1);
        let objects = objects();
        let product = product(&objects, descriptor, [a, b, c, d])?;
        let preference = objects.preferences.get(&preference);
        let preference = preference.ok_or_else(|| invalid("no such preference"))?;
        let wanted = usize::try_from(wanted).unwrap_or(0);
        let offered = algorithms(&product, preference.most_workspace).take(wanted);
        let offered: Vec<Heuristic> = offered.map(|algorithm| Heuristic {
            algorithm: algorithm.encode(),
            workspace: algorithm.workspace(),
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        }).collect();
        if offered.is_empty() {
            return Err(Refusal::new(NOT_SUPPORTED, "no algorithm for the product"));
        }
        results.set_all(&offered);
        found.set(offered.len() as c_int);
        Ok(())
    }

    fn cublasLtMatmulAlgoCheck(
        _handle: Handle,
        descriptor: Handle,
        a: Handle,
        b: Handle,
        c: Handle,
        d: Handle,
        algorithm: In<[u64; 8]>,
        result: Out<Heuristic>,
    ) {
        let product = product(&objects(), descriptor, [a, b, c, d])?;
        let algorithm = known(algorithm)?.ok_or_else(|| invalid("no algorithm"))?;
        check_served(algorithm, &product)?;
        result.set(Heuristic {
            algorithm: algorithm.encode(),
            workspace: algorithm.workspace(),
            state: 0,
            waves: 1.0,
            reserved: [0; 4],
        });
        Ok(())
    }

    fn cublasLtMatmul(
        _handle: Handle,
        descriptor: Handle,
        alpha: In<f32>,
        a: usize,
        a_layout: Handle,
        b: usize,
        b_layout: Handle,
        beta: In<f32>,
        c: usize,
        c_layout: Handle,
        d: usize,
        d_layout: Handle,
        algorithm: In<[u64; 8]>,
        workspace: usize,
        workspace_bytes: usize,
        stream: Handle,
    ) {
        let product = product(&objects(), descriptor, [a_layout, b_layout, c_layout, d_layout])?;
        let algorithm = match known(algorithm)? {
            Some(algorithm) => algorithm,
            // Without an algorithm the library asks the heuristic itself.
            None => {
                refuse_capture()?;
                let mut all = algorithms(&product, workspace_bytes);
                all.next().ok_or_else(|| Refusal::new(NOT_SUPPORTED, "no algorithm"))?
            }
        };
        check_served(algorithm, &product)?;
        if algorithm.workspace() > workspace_bytes {
            let needed = algorithm.workspace();
            return Err(invalid(format!("a workspace of {workspace_bytes} bytes, not {needed}")));
        }
        if !workspace.is_multiple_of(WORKSPACE_ALIGNMENT) {
            return Err(invalid(format!("a workspace at {workspace:#x}")));
        }
        lock().memory.check(workspace, workspace_bytes)
            .map_err(|refusal| invalid(refusal.reason))?;
        let scales = alpha.get(0).zip(beta.get(0));
        let (alpha, beta) = scales.ok_or_else(|| invalid("no alpha or no beta"))?;
        let operands = Operands { alpha, beta, a, b, c, d, workspace };
        let work = move || product.run(&operands, algorithm);
        let pushed = enter().and_then(|mut world| world.push(stream, "product", Arc::new(work)));
        pushed.map_err(|refusal| Refusal::new(EXECUTION_FAILED, refusal.reason))
    }
}

#[unsafe(no_mangle)]
extern "C" fn cublasLtGetVersion() -> usize {
    130_000
}
