"""EC2 behind the `Fleet` port: boto3 calls, the table of errors, user data, and an emulator to try it on."""
