/* rankplan: the command. */
#include "cli/cli.h"

#include <signal.h>

int main(int argc, char **argv)
{
    struct cli cli = {0};
    const struct cli_command *command;
    cli_guard_streams();
    int code = cli_parse(argc, argv, &cli, &command);
    if (!command)
        return code == CLI_OK ? cli_finish_output() : code;
    /* A reader that goes away is an output that cannot be written, not a silent death. */
    signal(SIGPIPE, SIG_IGN);
#ifdef SIGXFSZ
    signal(SIGXFSZ, SIG_IGN); /* nor is a file that may not grow */
#endif
    cli.command = command->name;
    const bool runs = command->takes != CLI_TAKES_TWO_PATHS;
    const rp_status status = runs ? cli_open_machine(&cli) : RP_OK;
    code = status == RP_OK ? command->run(&cli) : cli_fail(&cli, status);
    cli_close_machine(&cli);
    const int output = cli_finish_output();
    return code == CLI_OK ? output : code;
}
