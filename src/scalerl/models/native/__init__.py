"""Parts of the Llama passes in C, for processors: built where the machine has a C compiler, and
never needed. Without one, or with SCALERL_NATIVE=0, the same is computed by torch."""
