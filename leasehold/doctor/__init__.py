"""`leasehold doctor`: checks everything that an installation depends on, and names a remedy for each fault.

`judging` holds the rules, pure; `redis`, `database`, `programs` and `cloud` look and hand what they saw to them;
`examination` puts the looks one after the other, each within its time.
"""
