/* What a debugger starts: sleeps in a function where it may be stopped, and ends with 7. */
#define _GNU_SOURCE
#include <stdio.h>
#include <time.h>

__attribute__((noinline)) static int middle(int number)
{
    struct timespec begin, end, t = { 0, 200000000 };

    clock_gettime(CLOCK_MONOTONIC, &begin);
    nanosleep(&t, NULL);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double slept = (end.tv_sec - begin.tv_sec) + (end.tv_nsec - begin.tv_nsec) / 1e9;
    printf("slept %.1f s\n", slept);
    return number - 34;
}

int main(int argc, char **argv)
{
    (void)argv;
    return middle(40 + argc);
}
