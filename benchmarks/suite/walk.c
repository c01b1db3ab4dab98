/* Looks at every file below a directory once: the floor of any tool that compares times. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static long files;

static void walk(int directory)
{
    DIR *stream = fdopendir(directory);
    struct dirent *entry;

    if (!stream) {
        close(directory);
        return;
    }
    while ((entry = readdir(stream))) {
        struct stat status;

        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (fstatat(directory, entry->d_name, &status, AT_SYMLINK_NOFOLLOW))
            continue;
        files++;
        if (S_ISDIR(status.st_mode)) {
            int inner = openat(directory, entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
            if (inner >= 0)
                walk(inner);
        }
    }
    closedir(stream);
}

int main(int count, char **arguments)
{
    int top = open(count > 1 ? arguments[1] : ".", O_RDONLY | O_DIRECTORY);

    if (top < 0)
        return 1;
    walk(top);
    printf("%ld\n", files);
    return 0;
}
