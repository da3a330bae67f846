//! Links the crate's shared object under the file names of CUDA's libraries. The links lie in a
//! folder that `cargo test` puts on the library search path of every test that depends on this
//! crate.

use std::path::Path;

fn main() {
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    let folder = Path::new(&out).join("lib");
    std::fs::create_dir_all(&folder).expect("a folder in OUT_DIR");
    for name in [
        "libcuda.so",
        "libnvrtc.so",
        "libcublasLt.so",
        "libnccl.so.2",
    ] {
        let link = folder.join(name);
        // From `build/PACKAGE-HASH/out/lib` to the folder where cargo puts shared objects.
        let target = "../../../../deps/liblockstep_fake_cuda.so";
        if std::fs::read_link(&link).is_ok_and(|known| known == Path::new(target)) {
            continue;
        }
        if link.symlink_metadata().is_ok() {
            std::fs::remove_file(&link).expect("an old link can be replaced");
        }
        std::os::unix::fs::symlink(target, &link).expect("a link in OUT_DIR");
    }
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:rerun-if-changed=build.rs");
}
