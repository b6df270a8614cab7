# For gdb inside a time frame: gdb -x diecast.gdb --args PROGRAM…, or -p PID
#
# A call that carries time raises SIGSYS, which serves it; a program that was attached to may get a last SIGTRAP of its
# CPU meter before that is switched off.
handle SIGSYS nostop noprint pass
