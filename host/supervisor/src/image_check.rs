// Shared by build.rs and the tests: what an image must look like so that every loader takes it.

/// One PT_LOAD that is read and executed as it lies in the file, a read-only PT_DYNAMIC, no interpreter, no
/// thread-local storage, and small enough for its place.
fn check(image: &[u8]) -> Result<(), String> {
    if image.get(..4) != Some(b"\x7fELF") {
        return Err("not an ELF file".into());
    }
    let (phoff, phentsize, phnum) = (number(image, 32, 8) as usize, number(image, 54, 2) as usize, number(image, 56, 2));
    let mut loads = 0;
    for i in 0..phnum as usize {
        let p = phoff + i * phentsize;
        let (kind, flags) = (number(image, p, 4), number(image, p + 4, 4));
        match kind {
            1 => {
                loads += 1;
                if flags != 5 {
                    return Err(format!("PT_LOAD has flags {flags}, expected read and execute"));
                }
                if number(image, p + 8, 8) != number(image, p + 16, 8) || number(image, p + 32, 8) != number(image, p + 40, 8) {
                    return Err("PT_LOAD does not lie in memory as in the file".into());
                }
                if number(image, p + 40, 8) > 0x10_0000 {
                    return Err("larger than its place".into());
                }
            }
            2 if flags & 2 != 0 => return Err("PT_DYNAMIC is writable: ld.so would relocate it".into()),
            3 => return Err("has an interpreter".into()),
            7 => return Err("has thread-local storage".into()),
            _ => {}
        }
    }
    if loads == 1 { Ok(()) } else { Err(format!("{loads} PT_LOAD segments, expected one")) }
}
